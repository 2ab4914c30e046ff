"""How sequences leave a verifier, and which one leaves when pages run out. Pure.

Invariant R6: a sequence that settles leaves after everything drawn for it is reported. Its pages
are freed at once where it is in no pass, else when the pass has ended.
"""

from __future__ import annotations

from collections.abc import Callable

from dspark.rounds import feeding
from dspark.rounds.events import Action, CallBackPrefill, GoneReason, Released
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
        self.given_back = False  # pages were freed

    def settle(self, sequence: SequenceState) -> None:
        """Lets a sequence leave once everything that is being drawn for it is reported."""
        calling_back = sequence.state is PREFILL
        sequence.apply(SETTLE)
        if calling_back:
            self._ask(CallBackPrefill(sequence.number, sequence.epoch))
        if sequence.state is GONE:
            self.gone(sequence, sequence.leaving)

    def settled(self, sequence: SequenceState) -> None:
        """Ends a settling sequence: what was being drawn is reported, or will not be drawn."""
        sequence.apply(SETTLED)
        self.gone(sequence, sequence.leaving)

    def gone(self, sequence: SequenceState, why: GoneReason | None) -> None:
        self._forget(sequence)
        self.free(sequence)
        at = (sequence.number, sequence.epoch, sequence.round)
        self._ask(Released(*at, why, sequence.refusal))

    def drop(self, sequence: SequenceState) -> None:
        """Ends a sequence at once, whatever is being drawn: it has ended, its client left, or its
        coordinator does not list it any more."""
        if sequence.state is PREFILL:
            self._ask(CallBackPrefill(sequence.number, sequence.epoch))
        sequence.apply(DROPPED)
        self._forget(sequence)
        if not self._passes.hold(sequence):  # else when the pass is over
            self.free(sequence)

    def free(self, sequence: SequenceState) -> None:
        """Frees a sequence's pages; sequences that wait for some may ask again."""
        self._cache.free(sequence.number, sequence.epoch)
        self.given_back = True
        for each in self._live.values():
            each.starved = False

    def make_room(self, sequence: SequenceState) -> None:
        """Lets the youngest of all settle, as a sequence found no page. This one stays ready if
        pages were freed at once; else it waits, or is the youngest and leaves.

        The choice does not depend on what was drawn. One leaves at a time; the others wait.
        """
        staying = [each for each in self._live.values() if each.state is not SETTLING]
        if len(staying) == len(self._live):
            youngest = max(staying, key=lambda each: each.number)
            youngest.leaving = GoneReason.OUT_OF_PAGES
            self.settle(youngest)
            if youngest is sequence or youngest.state is GONE:
                return
        sequence.left_empty("out of pages")
        sequence.apply(STARVED)
        sequence.starved = True

    def _forget(self, sequence: SequenceState) -> None:
        feeding.close(sequence, self._ask)
        del self._live[sequence.number]
