"""A lane: one verifier, its drafters, its sequences. Admits, plans, commits reported rounds, hands
sequences back.

The verifier runs the rounds by itself; the lane sends it plans and receives its reports. It keeps
the coordinator's part of the invariants of `dspark.rounds`. R6: a sequence that moves stays here
until the verifier has released it; an ended one is dropped. R7: reports are applied exactly in
order of (epoch, round): journal and log first, then the acknowledgement, then shown. R9: an epoch
is written before anything can be drawn under it, and never used again. R10: a drafter that this
process cannot reach may still get the verifier's orders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import structlog

from coordinator.clock import Timer
from coordinator.lanes.commits import Commits
from coordinator.lanes.drafter_assignment import DrafterAssignment
from coordinator.lanes.facts import DrafterPort, VerifierFacts
from coordinator.lanes.lane_context import LaneContext
from coordinator.lanes.lane_drafters import LaneDrafters
from coordinator.lanes.members import Members, Owner, SilenceTimeouts, hand_back
from coordinator.lanes.request_state import LifeEvent, PlacedSequence, RequestState
from coordinator.lanes.round_learning import RoundLearning
from coordinator.lanes.watch import CommittedRound
from coordinator.planning.lane_plans import LanePlans
from coordinator.planning.planner import ValidRounds
from dspark.rounds.control import Admission, Down, Draining, PassReport, RoundsPort, Up
from dspark.rounds.events import (
    Acknowledged,
    DrafterEvent,
    KeepSequences,
    Release,
    Released,
    ReleaseMode,
)

log = structlog.get_logger("dspark.lane")

MOVING_S = 1.0  # before a verifier ends, its sequences move ...
MOVING_SHARE = 0.5  # ... but not before this share of the time it gave


class Lane:
    """Implements `Listener`. Holds its requests from `take` until they end or are handed back."""

    def __init__(
        self,
        facts: VerifierFacts,
        port: RoundsPort,
        owner: Owner,
        shared: LaneContext,
    ) -> None:
        clock, metrics, config = shared.clock, shared.metrics, shared.config
        self.facts, self._port, self._owner, self._config = facts, port, owner, config
        self._clock, self._metrics = clock, metrics
        self._explain, self._write = shared.explain, shared.write
        self._members = Members(facts, config.max_prefills)
        self._drafters = LaneDrafters(facts.name, shared)
        self.why_left_out = self._drafters.why_left_out
        self._plans = LanePlans(
            facts.cost, window=config.window, cohorts=config.cohorts, bypass=config.bypass
        )
        self._assignment = DrafterAssignment(self._drafters, self._plans, clock, metrics)
        self._commits = Commits(owner, facts.vocab_size, metrics)
        counts, monitor = self._commits.counts, shared.monitor
        self._learning = RoundLearning(
            facts.name, self._plans, self._drafters, counts, monitor, metrics
        )
        self._orders: list[Down] = []  # to be sent
        self._changed = True  # whether sequences or drafters did, since the last plan
        self._due = self._closed = False
        self._kept: frozenset[tuple[int, int]] = frozenset()  # of the last `KeepSequences`
        self._heard = clock.time()
        self._silence = SilenceTimeouts(self._members, config, self._heard)
        self._watching: Timer | None = None
        self.draining = False  # no new sequence is taken
        self.why_lost = ""  # for people, once its verifier is gone
        self.rounds = self.committed_by_rounds = 0
        self._hear: dict[type, Callable[[Any], None]] = {
            PassReport: self._passed,
            Released: self._released,
            DrafterEvent: self._drafter_event,
            Draining: lambda said: self.drain(said.finish_within_s),
        }
        self.show()
        port.listen(self)

    # For the scheduler and the pools.

    @property
    def states(self) -> Sequence[RequestState]:
        return self._members.states

    @property
    def waiting(self) -> int:
        """Number of sequences that have not joined the rounds."""
        return self._members.waiting

    def __len__(self) -> int:
        return len(self._members)

    def __bool__(self) -> bool:
        return True  # an empty lane is a lane

    @property
    def drafters(self) -> Sequence[DrafterPort]:
        return self._drafters.drafters

    @property
    def expected_rates(self) -> tuple[list[tuple[float, float]], float] | None:
        """((slots verified in a round, expected tokens per second), slots chosen) of the plan in
        force; None where there is no choice."""
        return self._plans.curve

    def can_take(self, state: RequestState) -> bool:
        """Whether the lane takes sequences and has room for this one, as far as is known here."""
        return not (self._closed or self.draining) and self._members.fits(state)

    def could_take(self, state: RequestState) -> bool:
        """Whether the sequence would fit if the pool were empty. No answer that has begun goes on
        under another target's weights."""
        begun = state.answer.index in state.shown
        if begun and state.target not in ("", self.facts.fingerprint):
            return False
        return not (self._closed or self.draining) and self._members.could_fit(state)

    def take(self, state: RequestState) -> None:
        """Takes a sequence in: its prompt is run beside the rounds, which it then joins."""
        state.sequence.apply(LifeEvent.PLACED)
        state.last_verifier, state.target = self.facts.name, self.facts.fingerprint
        self._members.add(state)
        self._soon()

    def forget(self, state: RequestState) -> None:
        """Drops a sequence that ended or whose client left, with whatever is being drawn for it."""
        placed = self._members.get(state.sequence.number)
        if placed is not None:
            self._take_out(placed)
            if placed.admitted:
                self._orders.append(Release(placed.number, placed.epoch, ReleaseMode.DROP))

    def drafter_joined(self, drafter: DrafterPort) -> None:
        self._drafters.joined(drafter)
        self._drafters_changed()

    def drafter_left(self, drafter: DrafterPort) -> None:
        """This process lost a drafter; its sequences stay, as the verifier may still reach it."""
        self._drafters.left(drafter)
        self._drafters_changed()

    def drafter_leaves(self, drafter: DrafterPort, leaves: bool = True) -> None:
        """Sets whether a drafter gets no new sequence; its own move once another drafter fits."""
        if self._drafters.leaves(drafter, leaves):
            self._drafters_changed()

    def _drafters_changed(self) -> None:
        self._plans.drafters(self._drafters.costs())
        self._assignment.look_at(self._members)
        self._changed = True
        self._soon()

    def show(self) -> None:
        """Puts the lane into the metrics; a lane of the same name that closed took them out."""
        known = float(self.facts.cost is not None)
        self._metrics.cost_curve_in_force.labels(lane=self.facts.name).set(known)
        self._learning.show()

    def drain(self, finish_within_s: float) -> None:
        """The verifier will leave: no new sequence, and those that run shortly before then move."""
        self.draining = True
        within_s = max(finish_within_s - MOVING_S, MOVING_SHARE * finish_within_s)
        self._clock.call_later(within_s, self._surely, self.move_all)

    def move_all(self) -> None:
        """Hands all sequences back, oldest first in the queue, each once it is settled."""
        self.draining = True
        for placed in reversed(tuple(self._members)):
            if placed.leaving is not None:
                continue
            if placed.admitted:
                self._settle(placed)
            else:
                self._take_out(placed)
                hand_back(self._owner, placed.state, LifeEvent.MOVED)
        self._soon()

    def _settle(self, placed: PlacedSequence, becomes: LifeEvent = LifeEvent.MOVED) -> None:
        """Releases a sequence once everything that was drawn for it has been reported."""
        placed.leaving = becomes
        placed.settled_by = self._clock.time() + self._config.verify_deadline_s
        self._orders.append(Release(placed.number, placed.epoch, ReleaseMode.SETTLE))
        self._soon()

    def close(self) -> None:
        """The verifier is gone: hands every sequence back, oldest first in the queue."""
        if self._closed:
            return
        self._closed = True
        if self._watching is not None:
            self._watching.cancel()
        self._learning.catch_up()
        self._metrics.cost_curve_in_force.remove(self.facts.name)
        self._learning.hide()
        # an end that was announced is no loss to its sequences
        event = LifeEvent.MOVED if self.draining else LifeEvent.ORPHANED
        for placed in reversed(tuple(self._members)):
            if self._members.get(placed.number) is not placed:
                continue  # it ended with another answer of its request
            self._take_out(placed)
            hand_back(self._owner, placed.state, event)

    # Messages of the verifier.

    def heard(self, news: Sequence[Up]) -> None:
        self._surely(self._take_in, news)

    def _take_in(self, news: Sequence[Up]) -> None:
        self._heard = self._clock.time()
        if not news:
            self._silence.got_on(self._heard)
        for each in news:
            self._hear[type(each)](each)
        # in this turn of the event loop, so before a client can see what it committed
        self._write()
        self._tell_orders()
        self._soon()

    def lost(self, why: str) -> None:
        self.why_lost = why
        self.close()

    def _passed(self, said: PassReport) -> None:
        report, now, committed = said.report, self._heard, 0
        self._silence.reported(said, now)
        applied = ValidRounds(said, [], [], [], [])
        states, reasons = list[RequestState](), list[str]()
        for place, each in enumerate(report.rounds):
            placed = self._find(each.sequence, each.epoch, "verdict")
            if placed is None:
                continue
            stands = placed.state.answer.committed_len
            in_order = each.round == placed.round and each.committed_before == stands
            if not in_order or (each.round == 0) is not (report.number == 0):
                self._fault(placed, "verdict")
                continue
            placed.round, placed.heard = placed.round + 1, now
            if each.round == 0:
                self._members.joined(placed)
                self._assignment.look_at((placed,))
                self._commits.begin(placed.state, each, said, now)
            else:
                applied.rounds.append(each)
                applied.keys.append(placed.planned.key)
                applied.weights.append(placed.planned.weight)
                applied.formed.append(placed.state.request.params.constraint is not None)
                states.append(placed.state)
                logprobs = said.logprobs[place] if place < len(said.logprobs) else ()
                reasons.append(self._assignment.why_empty(placed, each))
                committed += self._commits.judged(placed.state, each, logprobs, reasons[-1], now)
            if self._members.get(placed.number) is placed:  # else its answer ended
                self._assignment.reported(placed, each, now)
                self._orders.append(Acknowledged(placed.number, placed.epoch, each.round))
        self.rounds += len(applied.rounds)
        self.committed_by_rounds += committed
        self._learning.note(applied)
        if self._explain.watches and applied.rounds:
            plan, name_of = self._plans.in_force, self._drafters.name
            self._explain.reported(
                CommittedRound(
                    self.facts.name, now, said, applied.rounds, states, reasons, plan, name_of
                )
            )

    def _released(self, said: Released) -> None:
        placed = self._find(said.sequence, said.epoch, "released")
        if placed is None:
            return
        if said.refusal is not None:
            self._metrics.refusals.labels(reason=said.refusal.reason.name.lower()).inc()
        fate = placed.fate(said)
        self._take_out(placed)
        if isinstance(fate, LifeEvent):
            hand_back(self._owner, placed.state, fate)
        else:
            self._owner.ended(placed.state, fate)

    def _drafter_event(self, said: DrafterEvent) -> None:
        name = self._drafters.name(said.drafter)
        if not name:
            return  # it left: its verifier reports that it let go of it
        log.warning(
            "drafter.found_wanting", verifier=self.facts.name, drafter=name, what=said.what[:64]
        )
        if said.what != "late":
            self._assignment.lost(said.drafter, self._members, said.what)
            self._changed = True

    def _find(self, number: int, epoch: int, kind: str) -> PlacedSequence | None:
        placed = self._members.find(number, epoch)
        if placed is None:
            self._metrics.dropped.labels(kind=kind, reason="stale").inc()
        return placed

    def _fault(self, placed: PlacedSequence, kind: str) -> None:
        """Drops a sequence at a verifier whose report of it is out of order, and hands it back."""
        self._metrics.dropped.labels(kind=kind, reason="out_of_order").inc()
        self.forget(placed.state)
        hand_back(self._owner, placed.state, LifeEvent.ORPHANED)

    # Leaving.

    def _take_out(self, placed: PlacedSequence) -> None:
        self._members.remove(placed)
        self._assignment.left(placed)
        self._plans.remove(placed.number)
        self._soon()

    # Turns: work that is put off to the next turn of the event loop.

    def _surely(self, step: Callable[..., None], *args: object) -> None:
        """Runs a step. After a bug it writes what was committed and closes the port, so that the
        sequences get another lane."""
        if self._closed:
            return
        try:
            step(*args)
        except Exception as error:
            log.error("lane.failed", verifier=self.facts.name, exc_info=error)
            try:
                self._write()
            finally:
                self._port.close("its lane failed")

    def _soon(self) -> None:
        if not self._due and not self._closed:
            self._due = True
            self._clock.call_soon(self._surely, self._turn)

    def _turn(self) -> None:
        self._due = False
        learned = self._learning.catch_up()
        admissions = self._admit()
        self._assignment.settle()
        if learned or self._changed:
            self._plans.replan()
        self._orders.extend(self._drafters.news())
        if learned or self._changed or self._assignment.named:
            named, self._assignment.named = self._assignment.named, {}
            if (plan := self._plans.compose(named)) is not None:
                self._orders.append(plan)
        self._changed = False
        self._orders.extend(admissions)
        self._tell_orders()
        self._watch()

    def _admit(self) -> list[Admission]:
        """Admissions of the next sequences in the queue."""
        admitted = list(map(self._admission, self._members.next()))
        if admitted:
            self._write()  # epochs, before anything is drawn under them
        return admitted

    def _admission(self, placed: PlacedSequence) -> Admission:
        state = placed.state
        placed.epoch, placed.since = state.sequence.epoch, self._clock.time()
        placed.speculates = state.speculates and bool(self.facts.projection)
        state.note_epoch(placed.epoch, self.facts.fingerprint)
        self._metrics.prefills.labels(reason=state.why_prefilled).inc()
        self._assignment.admitted(placed)
        self._plans.add(placed.planned)
        self._changed = self._changed or not self._plans.covers(placed.planned)
        return placed.admission()

    def _tell_orders(self) -> None:
        orders, self._orders = self._orders, []
        if orders and not self._closed:
            self._port.tell(orders)

    # Timeouts.

    def _watch(self) -> None:
        if self._watching is None and (len(self) or self._kept) and not self._closed:
            self._watching = self._clock.call_later(self._silence.each_s, self._surely, self._look)

    def _look(self) -> None:
        """Applies timeouts: a silent verifier is lost, a sequence that it does not report moves,
        and one that it never settles is orphaned."""
        self._watching, now = None, self._clock.time()
        lost = self._silence.verifier_lost(self._heard, now)
        if lost is not None:
            self._port.close(lost)
            return
        for placed in self._members:
            if placed.leaving is not None and now >= placed.settled_by:
                self._fault(placed, "released")
        for placed in self._silence.overdue(now):
            self._metrics.dropped.labels(kind="sequence", reason="silent").inc()
            self._settle(placed)
        self._assignment.look_at(self._members)
        self._kept = frozenset(
            (placed.number, placed.epoch) for placed in self._members if placed.admitted
        )
        self._orders.append(KeepSequences(self._kept))
        self._soon()
