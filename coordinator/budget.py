"""How many slots the `async` rows of the next cohort may have verified. Pure numbers, older than its draft.

What blocks of the last rounds promised stands in for what the next ones will: noise is fresh in every round, so one
round of age is enough, and a few rounds together say more about a small cohort than its last one alone. All sizes are
searched, on the curve as measured, so no stair traps the search. Invariant 2, no peeking, holds because nothing of
the current block is in here.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from coordinator.prefix_scheduler import Floats, StepSeconds

POOLED_ROWS = 48  # blocks that are looked back at, unless one round has more
POOLED_ROUNDS = 16  # and how far at most


class Budget:
    """Remembers what recent blocks of `async` rows promised."""

    def __init__(self) -> None:
        self._rounds: deque[Floats] = deque()
        self._rows = 0

    def remember(self, worth: Floats) -> None:
        """Weighted survivals [n, k] of the blocks of a round, 0 where nothing was drafted."""
        if not len(worth):
            return
        self._rounds.append(worth)
        self._rows += len(worth)
        while len(self._rounds) > 1 and (
            self._rows - len(self._rounds[0]) >= POOLED_ROWS or len(self._rounds) > POOLED_ROUNDS
        ):
            self._rows -= len(self._rounds.popleft())

    def slots(self, rows: int, tokens: float, expected: float, step_seconds: StepSeconds) -> int | None:
        """Slots for `rows` async rows, beside a step of `tokens` that commits `expected`; None without a past."""
        if not self._rows or not rows:
            return None
        values = np.concatenate([worth[worth > 0.0] for worth in self._rounds])
        values.sort()
        scale = rows / self._rows
        committed = expected + scale * np.concatenate(([0.0], np.cumsum(values[::-1])))
        rate = committed / step_seconds(tokens + scale * np.arange(len(values) + 1, dtype=np.float64))
        return round(scale * int(rate.argmax()))
