"""What bounds a sequence: how much of a round belongs to its answer, which epoch it is in, which reports come next.

Pure. The verifier and the coordinator both cut a round where the answer ends, and must agree, so there is one function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dspark.errors import PeerError

EPOCHS = 1 << 32  # epochs key random draws as 32 bits


def kept(tokens: Sequence[int], room: int, stop_ids: frozenset[int]) -> tuple[int, bool]:
    """How many of these leading tokens an answer with `room` tokens left may commit, and whether they end it.

    A stop token inside an accepted prefix ends the answer there; what was accepted behind it was never said.
    """
    if len(tokens) < room and (not stop_ids or stop_ids.isdisjoint(tokens)):  # nearly always
        return len(tokens), False
    for index, token in enumerate(tokens[:room]):
        if token in stop_ids:
            return index + 1, True
    return min(len(tokens), room), len(tokens) >= room


class ReportCursor:
    """Which report of one sequence the coordinator applies next.

    Invariant R7: exactly in order of (epoch, round); what is older was applied or overtaken and is dropped.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch, self.round = epoch, 0

    def takes(self, epoch: int, round: int) -> bool:
        """Whether this report is the next one. Raises PeerError for one that leaves a gap."""
        if (epoch, round) < (self.epoch, self.round):
            return False
        if (epoch, round) != (self.epoch, self.round):
            raise PeerError(
                f"a report of epoch {epoch}, round {round} came where epoch {self.epoch}, round {self.round} is next"
            )
        self.round += 1
        return True

    def handed_over(self, epoch: int) -> None:
        """The sequence goes to a verifier anew, under a higher epoch."""
        if epoch <= self.epoch:
            raise ValueError(f"epoch {epoch} does not follow {self.epoch}")
        self.epoch, self.round = epoch, 0


class EpochLedger:
    """Gives out epochs of one answer.

    Invariant R9: an epoch is written down before anything is drawn under it, so that it is never given out again, not
    even when nothing was committed under it; else its keys of random draws would be used twice.
    """

    def __init__(self, write: Callable[[int], object], *, written: int = -1) -> None:
        """write: keeps an epoch for good before it returns. written: the highest one that was kept so far."""
        self._write, self._last = write, written

    def next(self) -> int:
        epoch = self._last + 1
        if epoch >= EPOCHS:
            raise OverflowError(f"epoch {epoch} does not fit in 32 bits")
        self._write(epoch)
        self._last = epoch
        return epoch
