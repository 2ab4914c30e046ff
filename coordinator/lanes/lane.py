"""A lane: one verifier, the drafters that feed it, the sequences that share its rounds.

Sequences are opened and prefilled here, beside the rounds, which `round_loop` drives. A lost verifier ends the lane
and hands its sequences back.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from coordinator.answers.answer import Started
from coordinator.clock import Clock, settled
from coordinator.lanes import paging
from coordinator.lanes.drafting import Drafting, DraftWaits, result_of
from coordinator.lanes.explain import Explain
from coordinator.lanes.feeding import Feeding
from coordinator.lanes.monitor import Monitor
from coordinator.lanes.ports import Declined, DrafterPort, Prefilled, PrefillOrder, VerifierFacts, VerifierPort
from coordinator.lanes.round_loop import Pace, RoundLoop
from coordinator.lanes.sequence import Event, State
from coordinator.lanes.settling import Owner, Settling
from coordinator.lanes.siblings import Siblings
from coordinator.lanes.track import Track
from coordinator.scheduling.cost_curve import CostCurve
from coordinator.scheduling.pipelining import Pipelining
from coordinator.scheduling.step_cost import StepCost
from dspark.errors import PeerError
from dspark.runtime.telemetry import Metrics
from dspark.types import RefusalReason

log = structlog.get_logger("dspark.lane")


MOVING_S = 1.0  # before a verifier ends, its sequences move ...
MOVING_SHARE = 0.5  # ... but not before this share of what it gave them


@dataclass(frozen=True, slots=True)
class Conduct:
    """How a lane behaves: how long it waits for whom, in seconds, how many wait at once, what it spares itself."""

    draft: DraftWaits = field(default_factory=DraftWaits)
    open_s: float = 1.0
    prefills: int = 32  # at one time: with many streams of short answers, a handful a round would be all that enter
    prefill_s: float = 120.0
    verify_s: float = 10.0
    bypass: bool = True  # adaptive sequences whose drafts do not pay go without, see `planning`
    explore: float = 1 / 64  # share of their rounds that are drafted nevertheless
    cohorts: int = 0  # 1 or 2 that take turns; 0: whichever commits faster, see `pipelining`
    window: int = 2  # rounds that a verifier may run beyond the last acknowledged one, where it runs them by itself


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
        explain: Explain | None = None,
        monitor: Monitor | None = None,
        write: Callable[[], None] = lambda: None,
    ) -> None:
        self.verifier = verifier
        self._owner, self._waits, self._clock, self._metrics = owner, waits, clock, metrics
        monitor = monitor if monitor is not None else Monitor(metrics)
        pipelining = Pipelining(waits.cohorts)
        self._feeding = Feeding(
            verifier, load, clock, metrics, monitor, patience_s=waits.draft.patience_s, silent=pipelining.silent
        )
        self._drafting = drafting = Drafting(self._feeding, waits.draft, clock, metrics, pipelining.overlaps)
        self._settling = Settling(owner, self._orphan, self._make_room, verifier.facts.vocab_size, metrics, write)
        self._tracks: dict[int, Track] = {}
        self._longest = 0  # pages of all of them at their longest
        self._intakes: set[asyncio.Task[None]] = set()
        self._prefill_room = asyncio.Semaphore(waits.prefills)
        self._siblings = Siblings()
        self._closed = False
        self.draining = False  # it takes nobody new
        self._heard = clock.time()  # when the verifier last answered a prefill
        self._prefills = itertools.count(1)
        self._prefilled = 0  # the latest of those that it has answered
        self._loop = RoundLoop(
            verifier,
            self._tracks,
            self._feeding,
            drafting,
            self._settling,
            pipelining,
            pace=Pace(waits.verify_s, waits.bypass, waits.explore),
            lose_verifier=self._lose_verifier,
            clock=clock,
            metrics=metrics,
            explain=explain,
            monitor=monitor,
        )
        metrics.cost_curve_in_force.labels(lane=verifier.facts.name).set(float(self.cost.verify is not None))

    async def run(self) -> None:
        """Rounds until the lane is closed."""
        await self._loop.run()

    @property
    def cost(self) -> StepCost:
        return self._loop.cost

    @property
    def rounds(self) -> int:
        """Rounds judged, counted per sequence."""
        return self._loop.rounds

    @property
    def committed_by_rounds(self) -> int:
        return self._loop.committed

    @property
    def facts(self) -> VerifierFacts:
        return self.verifier.facts

    @property
    def verify_cost(self) -> CostCurve | None:
        return self.cost.verify

    @property
    def waiting(self) -> int:
        """Sequences that have not joined the rounds."""
        return sum(track.sequence.state is State.PREFILLING for track in self._tracks.values())

    @property
    def depth(self) -> int:
        """Cohorts that take turns."""
        return self._loop.pipelining.depth

    # What others ask of a lane.

    @property
    def tracks(self) -> Sequence[Track]:
        return tuple(self._tracks.values())

    def __len__(self) -> int:
        """Sequences it holds: what admission balances, for every request over all lanes."""
        return len(self._tracks)

    def __bool__(self) -> bool:
        return True  # an empty lane is a lane

    @property
    def drafters(self) -> Sequence[DrafterPort]:
        return self._feeding.drafters

    def can_take(self, track: Track) -> bool:
        """Whether the page pool, as far as this coordinator filled it, has room for one more, see `paging`."""
        facts = self.verifier.facts
        if self._closed or self.draining or not facts.pages_total:
            return not (self._closed or self.draining)
        if self._longest + self._pages(track) <= facts.pages_total:
            return True  # without a look at everybody that runs, for every request
        return paging.fits(track, self._tracks.values(), page_size=facts.page_size, pages_total=facts.pages_total)

    def could_take(self, track: Track) -> bool:
        """Whether the sequence would fit if the pool were empty."""
        total = self.verifier.facts.pages_total
        return not (self._closed or self.draining) and (not total or self._pages(track) <= total)

    def _pages(self, track: Track) -> int:
        """Of a sequence at its longest."""
        return paging.pages(track.request.longest, self.verifier.facts.page_size or 1)

    def take(self, track: Track) -> None:
        """Opens and prefills beside the rounds; the sequence joins them when its anchor is there."""
        track.sequence.apply(Event.PLACED)
        track.row, track.last_verifier = self._loop.evidence.take(), self.verifier.facts.name
        self._tracks[track.sequence.number] = track
        self._longest += self._pages(track)
        self._loop.pipelining.joined(len(self._tracks))
        intake = asyncio.get_running_loop().create_task(self._take_in(track, track.sequence.epoch))
        self._intakes.add(intake)
        intake.add_done_callback(lambda done: self._taken_in(track, done))

    def forget(self, track: Track) -> None:
        """Frees a sequence in both pools at once."""
        if self._tracks.pop(track.sequence.number, None) is not None:
            self._longest -= self._pages(track)
            self._feeding.drop(track)
            self._loop.evidence.free(track.row, ended=track.sequence.finished)
            track.row = -1
            self.verifier.release(track.sequence.cursor)

    def drafter_joined(self, drafter: DrafterPort) -> None:
        self._feeding.joined(drafter)
        self._loop.pipelining.drafters_changed()
        self._loop.evidence.widen(drafter.facts.block_size)

    def drafter_left(self, drafter: DrafterPort) -> None:
        self._feeding.left(drafter, list(self._tracks.values()))
        self._drafting.left(drafter)

    def drain(self, finish_within_s: float) -> None:
        """The verifier will leave: nobody new, and who has not ended shortly before goes to another one."""
        self.draining = True
        self._clock.call_later(max(finish_within_s - MOVING_S, MOVING_SHARE * finish_within_s), self.move_all)

    def move_all(self) -> None:
        """Its sequences begin again elsewhere, the oldest first in line."""
        self.draining = True
        for track in reversed(list(self._tracks.values())):
            self.forget(track)
            track.sequence.apply(Event.MOVED)
            track.moved = True
            self._owner.moved(track)

    def drafter_leaves(self, drafter: DrafterPort, leaves: bool = True) -> None:
        """It takes nobody new; its sequences go to another one as soon as there is one."""
        self._feeding.leaves(drafter, leaves)

    def close(self) -> None:
        """The verifier is gone: every sequence goes back to where it came from, oldest first in line."""
        if self._closed:
            return
        self._closed = True
        self._metrics.cost_curve_in_force.labels(lane=self.verifier.facts.name).set(0)
        if self.draining:
            self.move_all()  # it said so, and whoever was still on the way to it lost nothing by its end
        for track in reversed(list(self._tracks.values())):
            self._orphan(track)
        for intake in self._intakes:
            intake.cancel()  # none of them is for this lane any more, and a late one would judge the verifier
        self._loop.close()

    # Taking in.

    async def _take_in(self, track: Track, epoch: int) -> None:
        if (ahead := self._siblings.ahead(track.request)) is not None:
            await settled((ahead,), self._waits.prefill_s, self._clock)
        with self._siblings.first(track.request):
            await self._take_in_now(track, epoch)

    async def _take_in_now(self, track: Track, epoch: int) -> None:
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
        self._metrics.prefills.labels(reason=why_prefilled(track)).inc()
        order = PrefillOrder(
            cursor,
            track.answer.log.ids(),
            track.request.law,
            track.request.longest,
            self._feeding.prefilling(track),
            keep,
            track.request.cache_salt,
            track.scores,
        )
        number = next(self._prefills)
        reply = self.verifier.prefill(order)
        while not reply.done() and (sequence.cursor, sequence.state) == (cursor, State.PREFILLING):
            began = self._clock.time()
            await settled((reply,), self._waits.prefill_s, self._clock)
            if not reply.done() and max(self._heard, self._loop.heard) < began:  # it said nothing at all in that time
                self._lose_verifier(f"no prefill within {self._waits.prefill_s:g} s")
            elif self._prefilled > number:
                break  # prompts are run in their order, so this one got lost
        prefilled = result_of(reply)
        if prefilled is not None:
            self._heard = self._clock.time()
        if isinstance(prefilled, Prefilled):
            self._prefilled = max(self._prefilled, number)
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
        if track.request.law.logprobs is not None and not prefilled.logprobs:
            self._owner.ended(track, PeerError("the verifier sent a token without its log-probability"))
            return
        if track.scores is not None and prefilled.prompt_logprobs is None:
            self._owner.ended(track, PeerError("the verifier sent no log-probabilities of the prompt"))
            return
        track.sequence.apply(Event.PREFILLED)
        started = None
        now = self._clock.time()
        if track.tally.first is None:
            track.tally.first = now
            started = Started(track.tally.queue_s(), prefilled.cached_tokens, prefilled.prompt_logprobs)
        piece = track.answer.take((prefilled.anchor,), prefilled.logprobs, started=started)
        self._settling.show_first(track, piece, now)
        self._loop.kick()

    def _refused(self, track: Track, declined: Declined) -> None:
        self._metrics.refusals.labels(reason=declined.why.name.lower()).inc()
        if declined.why is RefusalReason.NO_PAGES:
            self.forget(track)
            track.sequence.apply(Event.TURNED_AWAY)
            self._owner.turned_away(track)
        elif declined.why is RefusalReason.INVALID:
            self._owner.ended(track, PeerError(f"the verifier refused a prompt: {declined.message}"))
        else:
            track.refused = declined
            self._orphan(track)

    def _orphan(self, track: Track) -> None:
        if track.sequence.finished:
            return
        self.forget(track)
        track.sequence.apply(Event.ORPHANED)
        self._owner.orphaned(track)

    def _make_room(self) -> None:
        """A sequence found no page: the youngest begins again later."""
        victim = paging.youngest(self._tracks.values())
        if victim is not None:
            self.forget(victim)
            victim.sequence.apply(Event.PREEMPTED)
            self._owner.preempted(victim)

    def _lose_verifier(self, why: str) -> None:
        self.verifier.close(why)
        self.close()


def why_prefilled(track: Track) -> str:
    if track.handovers or track.moved:
        return "handover"
    if track.sequence.epoch > track.sequence.born + track.sequence.turned_away:
        return "preempted"
    return "resumed" if track.sequence.born else "new"
