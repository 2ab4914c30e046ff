"""Packed passes: which cohort may run one, and which prefix of each block is in it. Pure.

Invariant R3, no peeking: prefixes follow from frozen terms (`plan.prefixes`), and pages are asked
for oldest first, so a prefix is cut to the pages there are, whatever its own total. Invariant R6: a
verdict that was drawn is reported. When pages run out the youngest sequence settles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from dspark.rounds.events import PassRow, RunPass
from dspark.rounds.plan import prefixes
from dspark.rounds.state import PASS_BEGAN, READY, SequenceState


class KVCache(Protocol):
    """The verifier's cache, as rounds see it."""

    def grow(self, sequence: int, epoch: int, committed_len: int, slots: int) -> int | None:
        """Makes room for an anchor, which stands at committed_len - 1, and up to `slots` more
        tokens. Returns how many of those have pages; None when the anchor has none."""
        ...

    def free(self, sequence: int, epoch: int) -> None:
        """Frees all pages of a sequence. Never called while the sequence is in a pass."""
        ...


# Takes out the youngest, for a sequence that found no page. That one stays ready if there is room
# at once; else it waits, or has left.
MakeRoom = Callable[[SequenceState], None]


class Passes:
    """Passes that have begun and not ended, one of each cohort at most."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._running: dict[int, tuple[int, Sequence[SequenceState]]] = {}  # number: cohort, rows
        self._last = 0

    def busy(self, cohort: int, cohorts: int) -> bool:
        """Whether a cohort has to wait for a pass to end. With two cohorts, the pass of one is
        queued while that of the other runs."""
        if cohorts == 1:
            return bool(self._running)
        return any(its == cohort for its, _ in self._running.values())

    def begin(
        self, cohort: int, ready: Sequence[SequenceState], make_room: MakeRoom
    ) -> RunPass | None:
        """Fixes the prefixes of these sequences and begins a pass; None when none found a page."""
        rows = sorted(ready, key=lambda sequence: sequence.number)
        wanted = prefixes([each.block for each in rows], [each.terms for each in rows])
        grow = self._cache.grow
        for sequence, slots in zip(rows, wanted, strict=True):
            while sequence.state is READY:
                given = grow(sequence.number, sequence.epoch, sequence.committed_len, slots)
                if given is not None:
                    sequence.prefix = given
                    break
                make_room(sequence)
        # the others wait for pages, or made room
        taken = [sequence for sequence in rows if sequence.state is READY]
        if not taken:
            return None
        self._last += 1
        self._running[self._last] = (cohort, taken)
        asked = []
        for each in taken:
            each.apply(PASS_BEGAN)
            at = (each.number, each.epoch, each.round, each.committed_len, each.anchor)
            asked.append(PassRow(*at, each.prefix, each.answer, each.place))
        return RunPass(self._last, asked)

    def hold(self, sequence: SequenceState) -> bool:
        """Whether the sequence is in a pass that has not ended."""
        return any(sequence in rows for _, rows in self._running.values())

    def ended(self, number: int) -> Sequence[SequenceState]:
        """Removes a pass that has ended; returns its rows, in their order."""
        return self._running.pop(number)[1]
