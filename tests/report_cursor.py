"""Which report of one sequence a test's coordinator applies next: exactly in order of (epoch,
round)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ReportCursor:
    """Of one epoch."""

    epoch: int
    round: int = 0

    def takes(self, epoch: int, round: int) -> bool:
        """Whether this report is the next one; what is older was applied or overtaken."""
        if (epoch, round) < (self.epoch, self.round):
            return False
        assert (epoch, round) == (self.epoch, self.round), "R7: reports leave no gap"
        self.round += 1
        return True
