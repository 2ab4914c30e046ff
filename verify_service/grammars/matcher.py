"""The position of an answer in its grammar: a `dspark.decoding.masking.Matcher` on xgrammar's.

xgrammar's matcher fails if a mask is requested after a stop token, and grows with every accepted
token. So masks are requested only up to the end, and drafted tokens are rolled back. If a grammar
reads a text in many ways, each token takes longer than the one before, and such an answer is ended.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from verify_service.batch_runner import TooSlow

if TYPE_CHECKING:  # needs torch, which a synthetic engine does not import
    from dspark.decoding.masking import Masks

# Limits are CPU seconds of the thread, so that other load on the machine does not count.
SLOW_S = 0.1  # a longer call delays a pass
# slow calls allowed per answer; the part of one that each fast call cancels
FORGIVEN, FORGOTTEN = 2, 1 / 64
LONGEST_S = 1.0  # for accepting committed tokens, however many
PASS_S = 0.25  # for the masks of one pass, which other sequences share


class GrammarMatcher:
    """The matcher of one answer. `too_slow` is set when its grammar takes too long."""

    def __init__(self, compiled: Any, stop_ids: Sequence[int]) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._words = -(-compiled.tokenizer_info.vocab_size // 32)
        self._ends = np.zeros(self._words, np.int32)
        for token in stop_ids:
            self._ends.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)
        # mask of the next token, cached: an order requests it, and then its pass
        self._first: Masks | None = None
        self._over = False  # after a token that ends the answer
        self._slow = 0.0  # slow calls, less what fast ones cancel
        self.too_slow = False

    def masks(self, drafted: Sequence[int]) -> Masks:
        """Masks of the tokens allowed after 0, 1, ... drafted ones; see `Matcher`."""
        with self._bounded(PASS_S) as until:
            return self._masks(drafted, until)

    def accept(self, tokens: Sequence[int]) -> None:
        """Advances by committed tokens; see `Matcher`. Raises ValueError for a forbidden one."""
        self._first = None
        with self._bounded(LONGEST_S) as until:
            for token in tokens:
                if self._over or self._matcher.is_terminated() or time.thread_time() > until:
                    return
                if self._matcher.accept_token(token):
                    continue
                ends = self._masks((), until)[0] & self._ends
                if ends[token // 32] >> token % 32 & 1 == 0:
                    raise ValueError(f"token {token} does not continue the answer")
                self._over = True  # a stop token, allowed because no other token is

    @contextlib.contextmanager
    def _bounded(self, longest: float) -> Iterator[float]:
        """Times a call and counts slow ones. Yields its deadline in CPU seconds of the thread."""
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
