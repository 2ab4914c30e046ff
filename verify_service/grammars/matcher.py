"""Where an answer stands in its grammar: keeps `dspark.decoding.masking.Matcher` with xgrammar's.

xgrammar's matcher fails when it is asked for a mask behind a stop token, and grows by every token it takes. So it is
asked for no more than can be looked at, and rolled back by all that was only drafted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # it needs torch, and a synthetic engine does without
    from dspark.decoding.masking import Masks

SLOW_S = 0.1  # a mask that took as long as this is the last one


class GrammarMatcher:
    """Of one answer."""

    def __init__(self, compiled: Any, stop_ids: Sequence[int]) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._words = -(-compiled.tokenizer_info.vocab_size // 32)
        self._ends = np.zeros(self._words, np.int32)
        for token in stop_ids:
            self._ends.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)
        self._over = False  # behind a token that ends the answer
        self.too_slow = False  # its masks would hold up everybody

    def masks(self, drafted: Sequence[int]) -> Masks:
        """See `Matcher`."""
        made = np.zeros((len(drafted) + 1, self._words), np.int32)
        filled = taken = 0
        while not (self._over or self._matcher.is_terminated()):
            began = time.monotonic()
            self._matcher.fill_next_token_bitmask(made, filled)
            self.too_slow |= time.monotonic() - began > SLOW_S
            if not made[filled].any():
                made[filled] = self._ends
            filled += 1
            if filled > len(drafted) or not self._matcher.accept_token(drafted[taken]):
                break
            taken += 1
        if taken:
            self._matcher.rollback(taken)
        return made[:filled]

    def accept(self, tokens: Sequence[int]) -> None:
        """See `Matcher`. Raises ValueError for a token that may not come."""
        for token in tokens:
            if self._over or self._matcher.is_terminated():
                return
            if self._matcher.accept_token(token):
                continue
            if self.masks(())[0, token // 32] >> token % 32 & 1 == 0:
                raise ValueError(f"token {token} does not continue the answer")
            self._over = True  # the vocabulary could not go on
