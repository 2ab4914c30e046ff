"""Who has said nothing for too long: a verifier, or one sequence at a verifier that speaks of others.

A verifier that owes something and says nothing at all is lost. A sequence in rounds is reported every round; one whose
reports stay away settles and moves, since whatever its verifier forgot, it knows nothing of it. Prompts are run in
their order: one that was overtaken, or that waits while none gets on, is not coming. Nobody is late while the verifier
has no page left, and nobody stands still for the window, for reports are acknowledged in the turn in which they come.
"""

from __future__ import annotations

from collections.abc import Iterator

from coordinator.lanes.conduct import Conduct
from coordinator.lanes.members import Members
from coordinator.lanes.placed import Placed
from dspark.rounds.control import PassReport

LOOKS = 4  # in the shortest time somebody may be silent


class Silence:
    """Of one lane. Times are clock times."""

    def __init__(self, members: Members, waits: Conduct, now: float) -> None:
        self._members, self._waits = members, waits
        self._heard = self._prompts_got_on = now
        self._no_page = False  # as of the last report

    @property
    def each_s(self) -> float:
        """From one look to the next."""
        return min(self._waits.prefill_s, self._waits.verify_s) / LOOKS

    def broken(self, now: float) -> None:
        """It said something."""
        self._heard = now

    def reported(self, said: PassReport, now: float) -> None:
        """It said this."""
        self._no_page = said.report.number > 0 and said.pages_free == 0
        if said.started is not None or said.prefill_tokens:
            self._prompts_got_on = now

    def verifier_lost(self, now: float) -> str | None:
        """Why, or None."""
        since = min((placed.since for placed in self._members if placed.admitted), default=now)
        silent_s = now - max(self._heard, since)
        if any(placed.prefilled for placed in self._members) and silent_s >= self._waits.verify_s:
            return f"no verdict for {self._waits.verify_s:g} s"
        if self._members.prefilling and silent_s >= self._waits.prefill_s:
            return f"no prefill within {self._waits.prefill_s:g} s"
        return None

    def overdue(self, now: float) -> Iterator[Placed]:
        """Sequences that are to move; none that leaves already."""
        for placed in self._members:
            if not placed.admitted or placed.leaving is not None:
                continue
            if placed.prefilled:
                placed.heard = now if self._no_page else placed.heard
                late = now >= placed.heard + self._waits.verify_s
            else:
                got_on = placed.since if self._members.overtook(placed) else max(placed.since, self._prompts_got_on)
                late = now >= got_on + self._waits.prefill_s
            if late:
                yield placed
