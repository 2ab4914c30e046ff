"""Which drafter drafts for which sequence of a lane, from admission to end; plans name the changes.

A sequence without a drafter runs with empty blocks. It is checked again when a report, a drafter or
time may have changed something: its drafter left or is about to, is distrusted, has no blocks of
this length, or its rows never arrived.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.clock import Clock
from coordinator.lanes.lane_drafters import LaneDrafters
from coordinator.lanes.request_state import PlacedSequence
from coordinator.planning.lane_plans import LanePlans
from dspark.rounds.events import RoundReport
from dspark.runtime.telemetry import Metrics

AGAIN_S = 0.5  # between two searches for a drafter for the same sequence
# Rows missing at a drafter for this long will not arrive. A drafter that takes none is given up by
# the verifier much earlier; a language model may take a minute for those of a long prompt.
ROWS_S = 120.0
REASONS = {  # why a block was empty, as metrics name it
    "rows missing": "features_missing",
    "rows lost": "features_missing",
    "no drafter": "no_drafter",
    "drafter late": "drafter_late",
    "drafter busy": "drafter_busy",
    "drafter lost": "drafter_lost",
    "anchor used": "drafted_before",
    "last token": "last_token",
    "out of pages": "out_of_pages",
    "too long": "too_long",
    "unknown sequence": "unknown_sequence",
    "late": "late",
    "invalid": "invalid",
    "off": "bypass",
}


class DrafterAssignment:
    """Drafters of one lane. `named`: changes for the next plan, drafter by sequence, 0 for none."""

    def __init__(
        self, drafters: LaneDrafters, plans: LanePlans, clock: Clock, metrics: Metrics
    ) -> None:
        self._drafters, self._plans, self._clock, self._metrics = drafters, plans, clock, metrics
        self.named: dict[int, int] = {}
        self._due: dict[int, PlacedSequence] = {}  # to be checked

    def admitted(self, placed: PlacedSequence) -> None:
        """Chooses the first drafter, which the admission names."""
        self._assign(placed, self._drafters.choose(placed.state) if placed.speculates else 0)
        self.named.pop(placed.number, None)

    def left(self, placed: PlacedSequence) -> None:
        """Forgets a sequence that left the lane."""
        self._due.pop(placed.number, None)
        self.named.pop(placed.number, None)
        self._detach(placed)

    def look_at(self, placed: Iterable[PlacedSequence]) -> None:
        for each in placed:
            self._due[each.number] = each

    def reported(self, placed: PlacedSequence, said: RoundReport, now: float) -> None:
        """Notes from a round whether the drafter has the sequence's rows and delivers blocks."""
        if len(said.confidence):
            placed.rows_missing_since = None
            first = not placed.fed and said.drafter == placed.drafter
            placed.fed = placed.fed or first
            self._drafters.drafted(said.drafter, first=first)
        elif REASONS.get(said.why_empty) not in ("features_missing", "unknown_sequence"):
            placed.rows_missing_since = None
        elif placed.rows_missing_since is None:
            placed.rows_missing_since = now
        if placed.speculates:
            self._due[placed.number] = placed

    def why_empty(self, placed: PlacedSequence, said: RoundReport) -> str:
        """Why a round had no block, as metrics, explanations and traces name it; else empty."""
        if len(said.confidence):
            return ""
        if not placed.state.speculates:
            return "policy_off"
        why = REASONS.get(said.why_empty, "unspecified")
        nobody = why == "no_drafter" or (why == "bypass" and placed.drafter == 0)
        return self._drafters.why_nobody(placed.state) if nobody else why

    def lost(self, drafter: int, placed: Iterable[PlacedSequence], why: str) -> None:
        """Takes sequences off a lost drafter; off a full one, those that it never drafted for."""
        self._drafters.lost(drafter, why)
        self._plans.drafters(self._drafters.costs())
        for each in placed:
            if each.drafter == drafter and not (why == "full" and each.fed):
                self._assign(each, 0)
                each.not_before = 0.0

    def settle(self) -> None:
        """Gives due sequences without a drafter one, and replaces or removes an unfit one."""
        due, self._due = self._due, {}
        now = self._clock.time()
        for placed in due.values():
            if not placed.admitted or placed.leaving is not None or not placed.speculates:
                continue
            mine, since = placed.drafter, placed.rows_missing_since
            self._plans.tries(placed.planned, self._drafters.on_trial(mine, placed.state))
            stuck = since is not None and now - since > ROWS_S
            if (
                mine and not stuck and self._drafters.stays(mine, placed.state, fed=placed.fed)
            ) or (not mine and now < placed.not_before):
                continue
            other = self._drafters.choose(placed.state, besides=mine)
            if other or stuck or (mine and not self._drafters.may_stay(mine, placed.state)):
                self._assign(placed, other)
            if placed.drafter not in (0, mine):
                self._metrics.resends.labels(reason="attached").inc()

    def _detach(self, placed: PlacedSequence) -> None:
        if placed.drafter:
            self._drafters.detach(placed.drafter, fed=placed.fed)
            placed.drafter, placed.fed = 0, False

    def _assign(self, placed: PlacedSequence, drafter: int) -> None:
        """Assigns this drafter, 0 for none."""
        before, request = placed.drafter, placed.state.request
        self._detach(placed)
        params = request.params
        kind = (
            self._drafters.fingerprint(drafter),
            params.rule.name,
            params.greedy,
            params.constraint is not None,
            self._metrics.bounded_label(request.label) if request.label else "",
        )
        # as text, which computes its hash once
        placed.planned.key, placed.planned.drafted = repr(kind), drafter > 0
        placed.drafter, placed.fed, placed.rows_missing_since = drafter, False, None
        if drafter:
            self._drafters.attach(drafter, placed.state)
        placed.not_before = self._clock.time() + AGAIN_S
        self._plans.tries(placed.planned, self._drafters.on_trial(drafter, placed.state))
        if placed.drafter != before:
            self.named[placed.number] = placed.drafter
