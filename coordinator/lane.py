"""A lane: one verifier, the drafters that feed it, the sequences that share its rounds.

`run` is the loop: gather, draft, schedule, verify, settle. Sequences join and leave between rounds; prefills run
beside it. A late or lost draft is an empty block; a lost verifier ends the lane and hands its sequences back.

Invariant 2, no peeking: who is asked for a draft, what the step is expected to cost and how long the draft is waited
for are fixed before the draft is asked for; only `prefix_scheduler` looks at confidences.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from coordinator.bypass import Bypass
from coordinator.clock import Clock, settled
from coordinator.drafting import Drafting, DraftWaits, result_of
from coordinator.feeding import Feeding
from coordinator.policy import Greedy
from coordinator.ports import Declined, DrafterPort, Judged, Prefilled, PrefillOrder, VerifierPort
from coordinator.rounds import Turn, choose_prefixes, mean_context
from coordinator.sequence import Event, State
from coordinator.settling import Owner, Settling
from coordinator.step_cost import StepCost
from coordinator.track import Track
from dspark.errors import PeerError
from dspark.runtime.telemetry import Metrics
from dspark.types import RefusalReason

log = structlog.get_logger("dspark.lane")


@dataclass(frozen=True, slots=True)
class Conduct:
    """How a lane behaves: how long it waits for whom, in seconds, how many wait at once, what it spares itself."""

    draft: DraftWaits = field(default_factory=DraftWaits)
    open_s: float = 1.0
    prefills: int = 8  # at one time; more would all come late, as they share one device
    prefill_s: float = 120.0
    verify_s: float = 10.0
    bypass: bool = False  # greedy cohorts whose drafts have not paid go without, see `bypass`


class Lane:
    """Holds its tracks from `take` until they end, are turned away or are orphaned."""

    def __init__(
        self,
        verifier: VerifierPort,
        owner: Owner,
        *,
        load: Counter[DrafterPort],
        waits: Conduct,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self.verifier = verifier
        self.cost = StepCost(verifier.facts.cost)
        self.rounds = 0
        self.committed_by_rounds = 0
        self._owner, self._waits, self._clock, self._metrics = owner, waits, clock, metrics
        self._feeding = Feeding(verifier, load, clock, metrics)
        self._drafting = Drafting(self._feeding, waits.draft, clock, metrics)
        self._bypass = Bypass(self.cost)
        self._may_bypass = waits.bypass
        self._settling = Settling(owner, self._orphan, self._bypass, verifier.facts.vocab_size, metrics)
        self._tracks: dict[int, Track] = {}
        self._intakes: set[asyncio.Task[None]] = set()
        self._prefill_room = asyncio.Semaphore(waits.prefills)
        self._wake: asyncio.Future[None] | None = None
        self._closed = False
        self._heard = clock.time()  # when the verifier last answered anything
        self._said_uncosted = False
        metrics.cost_curve_in_force.labels(lane=verifier.facts.name).set(float(self.cost.verify is not None))

    async def run(self) -> None:
        """Rounds until the lane is closed, one cohort at a time."""
        while not self._closed:
            turns = self._gather()
            if not turns:
                await self._work()
                continue
            asked = self._ask_whom(turns)
            step_seconds = self.cost.of_round(mean_context(turns), self._drafting.seconds(asked))
            hops_s = await self._drafting.fill(asked)
            if hops_s is not None:
                self.cost.draft_hops.observe(hops_s)
            turns = [turn for turn in turns if turn.track.sequence.state is State.DRAFTING]
            choose_prefixes(turns, step_seconds)
            judged = await self._verify(turns)
            if judged is not None:
                self.rounds += len(turns)
                self.committed_by_rounds += self._settling.settle(turns, judged.verdicts)

    # What others ask of a lane.

    @property
    def tracks(self) -> Sequence[Track]:
        return tuple(self._tracks.values())

    @property
    def drafters(self) -> Sequence[DrafterPort]:
        return self._feeding.drafters

    def can_take(self, track: Track) -> bool:
        """Whether the page pool, as far as this coordinator filled it, has room for the whole life of a sequence."""
        total = self.verifier.facts.pages_total
        if self._closed or not total:
            return not self._closed
        return sum(self._pages(each) for each in (*self._tracks.values(), track)) <= total

    def could_take(self, track: Track) -> bool:
        """Whether the sequence would fit if the pool were empty."""
        total = self.verifier.facts.pages_total
        return not self._closed and (not total or self._pages(track) <= total)

    def take(self, track: Track) -> None:
        """Opens and prefills beside the rounds; the sequence joins them when its anchor is there."""
        track.sequence.apply(Event.PLACED)
        self._tracks[track.sequence.number] = track
        intake = asyncio.get_running_loop().create_task(self._take_in(track, track.sequence.epoch))
        self._intakes.add(intake)
        intake.add_done_callback(lambda done: self._taken_in(track, done))

    def forget(self, track: Track) -> None:
        """Frees a sequence in both pools at once."""
        if self._tracks.pop(track.sequence.number, None) is not None:
            self._feeding.drop(track)
            self._bypass.forget(track.sequence.number)
            self.verifier.release(track.sequence.cursor)

    def drafter_joined(self, drafter: DrafterPort) -> None:
        self._feeding.joined(drafter)

    def drafter_left(self, drafter: DrafterPort) -> None:
        self._feeding.left(drafter, list(self._tracks.values()))
        self._drafting.left(drafter)

    def close(self) -> None:
        """The verifier is gone: every sequence goes back to where it came from, oldest first in line."""
        if self._closed:
            return
        self._closed = True
        self._metrics.cost_curve_in_force.labels(lane=self.verifier.facts.name).set(0)
        for track in reversed(list(self._tracks.values())):
            self._orphan(track)
        self._kick()

    # The steps.

    def _gather(self) -> list[Turn]:
        turns = []
        for track in list(self._tracks.values()):
            if track.sequence.state is State.READY:
                self._feeding.between_rounds(track)
                track.sequence.apply(Event.GATHERED)
                turns.append(Turn.begin(track))
        if self.cost.verify is None and not self._said_uncosted and any(_greedy(turn) for turn in turns):
            self._said_uncosted = True
            log.warning("lane.no_cost_curve", verifier=self.verifier.facts.name, effect="greedy verifies everything")
        return turns

    def _ask_whom(self, turns: Sequence[Turn]) -> dict[DrafterPort, list[Turn]]:
        asked = self._drafting.sort(turns)
        drafted = [turn for its in asked.values() for turn in its]
        if not self._may_bypass or not self._bypass.applies(turns, drafted, self._drafting.seconds(asked)):
            return asked
        for turn in drafted:
            turn.empty_because = "bypass"
        return {}

    async def _verify(self, turns: Sequence[Turn]) -> Judged | None:
        """Verdicts on every prefix; None when there is nobody left to ask or to ask for."""
        if not turns or self._closed:
            return None
        orders = [turn.verify_order(self._feeding.sink(turn.track)) for turn in turns]
        for turn in turns:
            turn.track.sequence.apply(Event.SCHEDULED)
        self._metrics.cohorts.inc()
        self._metrics.control_round_trips.labels(kind="verify").inc()
        began = self._clock.time()
        reply = self.verifier.verify(orders)
        await settled((reply,), self._waits.verify_s, self._clock)
        took = self._clock.time() - began
        judged = result_of(reply)
        if judged is None or len(judged.verdicts) != len(turns):
            self.verifier.close("lost in a round" if reply.done() else f"no verdict for {self._waits.verify_s:g} s")
            self.close()
            return None
        self._heard = self._clock.time()
        self._metrics.verify_rpc.observe(took)
        self.cost.speculative.verify_hops.observe(took - judged.forward_s)
        if self.cost.verify is not None:
            self.cost.verify.observe(judged.tokens, mean_context(turns), judged.forward_s)
        return judged

    async def _take_in(self, track: Track, epoch: int) -> None:
        sequence = track.sequence
        async with self._prefill_room:
            if (sequence.state, sequence.epoch) != (State.PREFILLING, epoch):
                return  # it ended in line
            opening = self._feeding.open(track)
            if opening is not None:
                await settled((opening,), self._waits.open_s, self._clock)
            if (sequence.state, sequence.epoch) == (State.PREFILLING, epoch):
                await self._prefill(track)

    async def _prefill(self, track: Track) -> None:
        sequence, cursor = track.sequence, track.sequence.cursor
        keep = track.speculates and bool(self.verifier.facts.projection)
        self._metrics.prefills.labels(reason="handover" if track.handovers else "new").inc()
        order = PrefillOrder(
            cursor,
            track.answer.log.ids(),
            track.request.law,
            track.request.longest,
            self._feeding.prefilling(track),
            keep,
        )
        began = self._clock.time()
        reply = self.verifier.prefill(order)
        await settled((reply,), self._waits.prefill_s, self._clock)
        if not reply.done() and self._heard < began:  # it said nothing at all in that time
            self.verifier.close(f"no prefill within {self._waits.prefill_s:g} s")
            self.close()
        prefilled = result_of(reply)
        if prefilled is not None:
            self._heard = self._clock.time()
        if sequence.cursor != cursor or sequence.state is not State.PREFILLING:
            self._metrics.dropped.labels(kind="prefilled", reason="stale").inc()
        elif isinstance(prefilled, Prefilled):
            self._join(track, prefilled)
        elif prefilled is None:
            self._orphan(track)
        else:
            self._refused(track, prefilled)

    def _taken_in(self, track: Track, intake: asyncio.Task[None]) -> None:
        self._intakes.discard(intake)
        error = None if intake.cancelled() else intake.exception()
        if error is not None:  # a bug: the request fails and its neighbours do not notice
            log.error("intake.failed", sequence=track.sequence.number, exc_info=error)
            self._owner.ended(track, PeerError("the prefill failed; see the coordinator's log"))

    def _join(self, track: Track, prefilled: Prefilled) -> None:
        if prefilled.anchor >= self.verifier.facts.vocab_size:
            self._owner.ended(track, PeerError("the verifier sent a token that is not in its vocabulary"))
            return
        track.sequence.apply(Event.PREFILLED)
        if track.tally.first is None:
            track.tally.first = self._clock.time()
        self._settling.show(track, track.answer.take((prefilled.anchor,)))
        self._kick()

    def _refused(self, track: Track, declined: Declined) -> None:
        self._metrics.refusals.labels(reason=declined.why.name.lower()).inc()
        if declined.why is RefusalReason.NO_PAGES:
            self.forget(track)
            track.sequence.apply(Event.TURNED_AWAY)
            self._owner.turned_away(track)
        elif declined.why is RefusalReason.INVALID:
            self._owner.ended(track, PeerError(f"the verifier refused a prompt: {declined.message}"))
        else:
            self._orphan(track)

    def _orphan(self, track: Track) -> None:
        if track.sequence.finished:
            return
        self.forget(track)
        track.sequence.apply(Event.ORPHANED)
        self._owner.orphaned(track)

    def _pages(self, track: Track) -> int:
        return math.ceil(track.request.longest / self.verifier.facts.page_size)

    async def _work(self) -> None:
        if not self._closed:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake

    def _kick(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


def _greedy(turn: Turn) -> bool:
    return isinstance(turn.track.request.policy, Greedy)
