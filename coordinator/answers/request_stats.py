"""What happened to one answer, in numbers: the statistics and timings of its last message.

Invariant: the acceptance histogram sums to `rounds`, and weighted by its index to `accepted`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class RequestStats:
    arrived: float
    placed: float | None = None  # start of the first prefill
    first: float | None = None  # first token committed
    ended: float | None = None
    drafted: int = 0
    verified_histogram: list[int] = field(default_factory=list)
    acceptance_histogram: list[int] = field(default_factory=list)
    committed_by_rounds: int = 0
    shown: float | None = None  # newest commit

    @staticmethod
    def together(stats: Sequence[RequestStats]) -> RequestStats:
        """Of several answers: counts add up, and the first start and the last end count."""
        if len(stats) == 1:
            return stats[0]
        whole = RequestStats(
            min(one.arrived for one in stats),
            min((one.placed for one in stats if one.placed is not None), default=None),
            min((one.first for one in stats if one.first is not None), default=None),
            max((one.ended for one in stats if one.ended is not None), default=None),
            sum(one.drafted for one in stats),
            committed_by_rounds=sum(one.committed_by_rounds for one in stats),
        )
        for one in stats:
            for index, count in enumerate(one.verified_histogram):
                _count(whole.verified_histogram, index, count)
            for index, count in enumerate(one.acceptance_histogram):
                _count(whole.acceptance_histogram, index, count)
        return whole

    def round(self, *, verified: int, accepted: int, committed: int) -> None:
        """A judged round: slots verified, drafted tokens committed, tokens committed in all."""
        _count(self.verified_histogram, verified)
        _count(self.acceptance_histogram, accepted)
        self.committed_by_rounds += committed

    @property
    def rounds(self) -> int:
        return sum(self.acceptance_histogram)

    @property
    def verified(self) -> int:
        return sum(index * count for index, count in enumerate(self.verified_histogram))

    @property
    def accepted(self) -> int:
        return sum(index * count for index, count in enumerate(self.acceptance_histogram))

    @property
    def mean_acceptance_length(self) -> float:
        """tau: the target's own token counts."""
        return self.committed_by_rounds / self.rounds if self.rounds else 0.0

    def queue_s(self) -> float:
        return (self.placed if self.placed is not None else self._end()) - self.arrived

    def first_token_s(self) -> float:
        return (self.first if self.first is not None else self._end()) - self.arrived

    def per_token_s(self, tokens: int) -> float:
        """Mean time per token after the first."""
        if self.first is None or tokens < 2:
            return 0.0
        return (self._end() - self.first) / (tokens - 1)

    def total_s(self) -> float:
        return self._end() - self.arrived

    def _end(self) -> float:
        return self.ended if self.ended is not None else self.arrived


def _count(histogram: list[int], index: int, by: int = 1) -> None:
    if index >= len(histogram):
        histogram.extend([0] * (index + 1 - len(histogram)))
    histogram[index] += by
