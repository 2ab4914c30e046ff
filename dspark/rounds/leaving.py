"""How sequences leave a verifier, and who leaves when pages run out. Pure.

Invariant R6: whoever settles has everything that was drawn for it reported first. Its pages come
free at once where it is in no pass, else when the pass has ended.
"""

from __future__ import annotations

from collections.abc import Callable

from dspark.rounds import feeding
from dspark.rounds.events import Action, CallBackPrefill, Released, Why
from dspark.rounds.passes import KVCache, Passes
from dspark.rounds.state import (
    DROPPED,
    GONE,
    PREFILL,
    SETTLE,
    SETTLED,
    SETTLING,
    STARVED,
    SequenceState,
)


class Leaving:
    """Takes sequences out of `live`."""

    def __init__(
        self,
        live: dict[int, SequenceState],
        cache: KVCache,
        passes: Passes,
        ask: Callable[[Action], object],
    ) -> None:
        self._live, self._cache, self._passes, self._ask = live, cache, passes, ask
        self.given_back = False  # pages came free

    def settle(self, sequence: SequenceState) -> None:
        """It leaves once everything that is being drawn for it has been reported."""
        calling_back = sequence.state is PREFILL
        sequence.apply(SETTLE)
        if calling_back:
            self._ask(CallBackPrefill(sequence.number, sequence.epoch))
        if sequence.state is GONE:
            self.gone(sequence, sequence.leaving)

    def settled(self, sequence: SequenceState) -> None:
        """What was being drawn has been reported, or will not be drawn."""
        sequence.apply(SETTLED)
        self.gone(sequence, sequence.leaving)

    def gone(self, sequence: SequenceState, why: Why | None) -> None:
        self._forget(sequence)
        self.free(sequence)
        number, epoch = sequence.number, sequence.epoch
        self._ask(Released(number, epoch, sequence.round, sequence.committed_len, why))

    def drop(self, sequence: SequenceState) -> None:
        """At once, whatever is being drawn: it ended, its client left, or nobody is there to be
        told."""
        if sequence.state is PREFILL:
            self._ask(CallBackPrefill(sequence.number, sequence.epoch))
        sequence.apply(DROPPED)
        self._forget(sequence)
        if not self._passes.hold(sequence):  # else when the pass is over
            self.free(sequence)

    def free(self, sequence: SequenceState) -> None:
        """Gives back its pages; whoever waits for some may ask again."""
        self._cache.free(sequence.number, sequence.epoch)
        self.given_back = True
        for each in self._live.values():
            each.starved = False

    def make_room(self, sequence: SequenceState) -> bool:
        """A sequence found no page: the youngest of all settles. Whether to ask again at once.

        Who that is has nothing to do with what was drawn. One at a time: while one is on its way
        out the others wait.
        """
        staying = [each for each in self._live.values() if each.state is not SETTLING]
        if len(staying) == len(self._live):
            youngest = max(staying, key=lambda each: each.number)
            youngest.leaving = Why.OUT_OF_PAGES
            self.settle(youngest)
            if youngest is sequence:
                return False
            if youngest.state is GONE:
                return True
        sequence.left_empty("out of pages")
        sequence.apply(STARVED)
        sequence.starved = True
        return False

    def _forget(self, sequence: SequenceState) -> None:
        feeding.close(sequence, self._ask)
        del self._live[sequence.number]
