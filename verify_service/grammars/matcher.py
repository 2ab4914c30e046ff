"""Where an answer stands in its grammar: keeps `dspark.decoding.masking.Matcher` with xgrammar's.

xgrammar's matcher fails when it is asked for a mask behind a stop token, and grows by every token
it takes. So it is asked for no more than can be looked at, and rolled back by all that was only
drafted. Where a grammar reads one text in many ways, every token takes longer than the one before:
such an answer comes to an end.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from verify_service.batch_runner import TooSlow

if TYPE_CHECKING:  # it needs torch, and a synthetic engine does without
    from dspark.decoding.masking import Masks

# Of processor time of its own: on a busy machine nobody is slow for what others do.
SLOW_S = 0.1  # a call that takes more holds up a pass
# slow calls of one answer; how much of one every other call makes good
FORGIVEN, FORGOTTEN = (
    2,
    1 / 64,
)
LONGEST_S = 1.0  # to go over committed tokens, however many
PASS_S = 0.25  # for the masks of one pass, in which others wait


class GrammarMatcher:
    """Of one answer."""

    def __init__(self, compiled: Any, stop_ids: Sequence[int]) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._words = -(-compiled.tokenizer_info.vocab_size // 32)
        self._ends = np.zeros(self._words, np.int32)
        for token in stop_ids:
            self._ends.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)
        # what may come next, as told last: an order asks, and then its pass
        self._first: Masks | None = None
        self._over = False  # behind a token that ends the answer
        self._slow = 0.0  # calls that are not made good
        self.too_slow = False

    def masks(self, drafted: Sequence[int]) -> Masks:
        """See `Matcher`."""
        with self._bounded(PASS_S) as until:
            return self._masks(drafted, until)

    def accept(self, tokens: Sequence[int]) -> None:
        """See `Matcher`. Raises ValueError for a token that may not come."""
        self._first = None
        with self._bounded(LONGEST_S) as until:
            for token in tokens:
                if self._over or self._matcher.is_terminated() or time.thread_time() > until:
                    return
                if self._matcher.accept_token(token):
                    continue
                if self._masks((), until)[0, token // 32] >> token % 32 & 1 == 0:
                    raise ValueError(f"token {token} does not continue the answer")
                self._over = True  # the vocabulary could not go on

    @contextlib.contextmanager
    def _bounded(self, longest: float) -> Iterator[float]:
        """Until when a call may take, in seconds of this thread; counts it."""
        began = time.thread_time()
        try:
            yield began + longest
        finally:
            spent = time.thread_time() - began
            self._slow = self._slow + 1 if spent > SLOW_S else max(self._slow - FORGOTTEN, 0.0)
            self.too_slow |= spent > longest or self._slow > FORGIVEN

    def _masks(self, drafted: Sequence[int], until: float) -> Masks:
        made = np.zeros((len(drafted) + 1, self._words), np.int32)
        filled = taken = 0
        try:
            while not (self._over or self._matcher.is_terminated()):
                if filled or self._first is None:
                    self._matcher.fill_next_token_bitmask(made, filled)
                    if not made[filled].any():
                        made[filled] = self._ends
                else:
                    made[0] = self._first
                filled += 1
                if filled > len(drafted) or not self._matcher.accept_token(drafted[taken]):
                    break
                taken += 1
                if time.thread_time() > until:
                    raise TooSlow
        finally:
            if taken:
                self._matcher.rollback(taken)
        if filled and self._first is None:
            self._first = made[0].copy()
        return made[:filled]
