"""How many slots the `async` rows of the next cohort may have verified. Pure numbers, older than its draft.

What blocks of the last rounds promised stands in for what the next ones will: noise is fresh in every round, so one
round of age is enough, and a few rounds together say more about a small cohort than its last one alone. All sizes are
searched, on the curve as measured, so no stair traps the search. Invariant 2, no peeking, holds because nothing of
the current block is in here.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from dspark.rounds.schedule import Floats, StepSeconds

POOLED_ROWS = 48  # blocks that are looked back at, unless one round has more
POOLED_ROUNDS = 32  # and how far at most


class Budget:
    """Remembers what recent blocks of `async` rows promised, round by round."""

    def __init__(self) -> None:
        self._rounds: deque[tuple[int, Floats]] = deque()  # (rows, worth of the first 0, 1, 2 ... slots that rank)
        self._rows = 0

    def remember(self, worth: Floats) -> None:
        """Weighted survivals [n, k] of the blocks of a round, 0 where nothing was drafted."""
        if not len(worth):
            return
        values = np.sort(worth, axis=None)[::-1]
        self._rounds.append((len(worth), np.concatenate(([0.0], np.cumsum(values)))))
        self._rows += len(worth)
        while len(self._rounds) > 1 and (
            self._rows - self._rounds[0][0] >= POOLED_ROWS or len(self._rounds) > POOLED_ROUNDS
        ):
            self._rows -= self._rounds.popleft()[0]

    def slots(self, rows: int, tokens: float, expected: float, step_seconds: StepSeconds) -> int | None:
        """Slots for `rows` async rows, beside a step of `tokens` that commits `expected`; None without a past.

        Rounds are averaged, not pooled: slots left over in one round cannot be spent in another.
        """
        if not self._rounds or not rows:
            return None
        longest = max(rows * (len(worth) - 1) // count for count, worth in self._rounds)
        slots = np.arange(longest + 1, dtype=np.float64)
        brought = np.zeros(longest + 1)
        for count, worth in self._rounds:
            scale = rows / count
            same = scale == 1.0 and len(worth) == longest + 1
            brought += worth if same else scale * np.interp(slots / scale, np.arange(len(worth)), worth)
        rate = (expected + brought / len(self._rounds)) / step_seconds(tokens + slots)
        return int(rate.argmax())
