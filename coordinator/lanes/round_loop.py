"""The rounds of a lane: gather, plan, draft, schedule, verify, settle; one cohort at a time, or two that take turns.

With two cohorts one is drafted for while the other is verified. They are told apart by sequence number, never by
content. Sequences join and leave between rounds. A late or lost draft is an empty block; a verifier that gives no
verdict is let go.

Invariant 2, no peeking: who is asked for a draft and for how long a block, the budget, weights and trust, the cost of
the step and the deadline are fixed before the draft is asked for; only `dspark.rounds.schedule` looks at confidences.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress

import numpy as np
import structlog

from coordinator.clock import Clock, let_orders_leave, settled
from coordinator.lanes.drafting import Drafting, result_of
from coordinator.lanes.explain import Explain, Settled
from coordinator.lanes.feeding import Feeding
from coordinator.lanes.foresight import Foresight, columns_of
from coordinator.lanes.learning import Learning
from coordinator.lanes.monitor import Monitor
from coordinator.lanes.ports import DrafterPort, Judged, VerifierPort, VerifyOrder
from coordinator.lanes.rounds import Blocks, Terms, Turn, choose_prefixes
from coordinator.lanes.sequence import Event, State
from coordinator.lanes.settling import Settling
from coordinator.lanes.track import Feed, Track
from coordinator.scheduling.budget import Budget
from coordinator.scheduling.evidence import Evidence
from coordinator.scheduling.pipelining import Mode, Pipelining
from coordinator.scheduling.planning import Cohort, Plan, Planner
from coordinator.scheduling.step_cost import StepCost
from dspark.rounds.policy import Kind
from dspark.runtime.telemetry import Metrics

log = structlog.get_logger("dspark.rounds")


@dataclass(frozen=True, slots=True)
class Pace:
    """How rounds are conducted."""

    verify_s: float = 10.0  # longest wait for the verdicts of a cohort
    bypass: bool = True  # adaptive sequences whose drafts do not pay go without
    explore: float = 1 / 64  # share of their rounds that are drafted nevertheless


class RoundLoop:
    """Drives the tracks of one lane. `lose_verifier` is called when it gives no verdict, and closes the lane."""

    def __init__(
        self,
        verifier: VerifierPort,
        tracks: Mapping[int, Track],
        feeding: Feeding,
        drafting: Drafting,
        settling: Settling,
        pipelining: Pipelining,
        *,
        pace: Pace,
        lose_verifier: Callable[[str], None],
        clock: Clock,
        metrics: Metrics,
        explain: Explain | None = None,
        monitor: Monitor | None = None,
    ) -> None:
        self.cost = StepCost(verifier.facts.cost, pipelining.overlaps)
        self.evidence = Evidence()
        self.pipelining = pipelining
        self.rounds = 0
        self.committed = 0
        self.heard = clock.time()  # when the verifier last gave a verdict
        self._verifier, self._tracks = verifier, tracks
        self._feeding, self._drafting, self._settling = feeding, drafting, settling
        self._pace, self._lose_verifier, self._clock, self._metrics = pace, lose_verifier, clock, metrics
        self._explain = explain if explain is not None else Explain()
        self._planner = Planner(
            self.cost, self.evidence, explore=pace.explore, bypass=pace.bypass, silent=pipelining.silent
        )
        self._foresight = Foresight(
            tracks, feeding, drafting, self._planner, self.cost, self._hidden_s, mode=lambda: pipelining.mode
        )
        self._budget = Budget()
        self._learning = Learning(self.cost, self.evidence, self._budget, monitor)
        self._wake: dict[int, asyncio.Future[None]] = {}
        self._second: asyncio.Task[None] | None = None
        self._in_verification = 0
        self._closed = False
        self._said_uncosted = False
        self._said_mode: Mode | None = None
        self._judged_at: float | None = None  # when the last verdicts came, while there is work
        self._cold = True  # drafts were asked for in the last round, or there was none
        self._late: list[Callable[[], None]] = []  # what finished rounds left to learn

    async def run(self) -> None:
        """Until closed. A second cohort has a task of its own while there is one."""
        try:
            while not self._closed:
                if self._second is not None and self._second.done():
                    self._second.result()  # what went wrong there goes wrong here
                if self.pipelining.overlaps() and (self._second is None or self._second.done()):
                    self._second = asyncio.get_running_loop().create_task(self._run_second())
                    self._second.add_done_callback(lambda _: self.kick())
                await self._turn_over(0)
        finally:
            if self._second is not None:
                self._second.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._second

    def close(self) -> None:
        self._closed = True
        if self._said_mode is not None:
            self._metrics.lane_mode.labels(lane=self._verifier.facts.name, mode=self._said_mode.value).set(0)
        self.kick()

    def kick(self) -> None:
        """Somebody may be ready for a round."""
        for waiting in self._wake.values():
            if not waiting.done():
                waiting.set_result(None)

    async def _run_second(self) -> None:
        while not self._closed and self.pipelining.overlaps():
            await self._turn_over(1)

    async def _turn_over(self, part: int) -> None:
        """One round of a part, or a wait for somebody to be ready."""
        turns = self._gather(part)
        if turns:
            await self._round(part, turns)
            return
        self._catch_up()
        if not self._tracks:
            self._judged_at = None  # nobody is there: what comes now is no gap between rounds,
            self._cold = True  # and finds other caches
        if not self._closed:
            self._wake[part] = asyncio.get_running_loop().create_future()
            await self._wake[part]

    async def _round(self, part: int, turns: list[Turn]) -> None:
        """Everything that need not come before a message to a worker comes after it."""
        began, beside = self._clock.time(), self.pipelining.overlaps()
        plan = self._foresight.planned(part, turns)
        drafts = self._drafting.ask(self._ask_whom(turns, plan))
        calm = not (drafts.orders or self._cold or self._drafting.owed)
        self._cold = bool(drafts.orders)
        if drafts.orders:  # else the first message is the verifier's, and clients would be served before it
            await let_orders_leave()
            self._catch_up()
        cohort = columns_of(turns, self._feeding, self._learning.extra_tokens)
        self._say_uncosted(cohort)
        terms = self._terms(turns, cohort, drafts.orders)
        trust = self.evidence.trust(cohort.row)
        drafted_s = await self._drafting.fill(drafts)
        stays = [turn.stands(State.DRAFTING) for turn in turns]
        if not all(stays):  # some ended meanwhile, or left and came back
            turns, alive = list(compress(turns, stays)), np.array(stays, np.bool_)
            cohort, trust = cohort.only(alive), trust[alive]
        blocks = self._learning.refit.corrected(turns, Blocks.of(turns))
        if blocks.confidence.shape[1]:
            choose_prefixes(turns, blocks, cohort.policies, terms, cohort.weight, trust)
        judged, verified_s = await self._verify(part, turns, cohort, calm=calm)
        if judged is None:
            return
        committed = self._settling.settle(turns, judged.verdicts, self._clock.time())
        self.rounds += len(turns)
        self.committed += committed
        now = self._clock.time()
        if self._explain.watched:
            told = (turns, cohort, blocks, trust, terms, plan, self._planner.goes_plain, drafts, judged, committed)
            self._explain.settled(Settled(self._verifier.facts.name, began, now, drafted_s, verified_s, *told))
        learn = partial(
            self._learning.learn,
            turns,
            cohort,
            blocks,
            judged,
            plan,
            price=self._planner.price,
            speculative=bool(drafts.orders),
            calm=calm,
            rest_s=None if beside else now - began - drafted_s - verified_s,
        )
        self._late.append(learn)
        if self.pipelining.judged(now, committed, len(self._tracks)):
            two = self._foresight.two_could_win(turns, cohort.context, drafts.orders)
            self.pipelining.may_try(two=two, plain=self._planner.plain_could_win())
        self._say_mode()

    def _say_mode(self) -> None:
        """What operators see of how the lane goes about its rounds; trials are not told."""
        mode = self.pipelining.home
        if mode is self._said_mode:
            return
        self._said_mode, lane = mode, self._verifier.facts.name
        for each in Mode:
            self._metrics.lane_mode.labels(lane=lane, mode=each.value).set(float(each is mode))
        log.info("lane.mode", lane=lane, mode=mode.value, sequences=len(self._tracks))

    def _catch_up(self) -> None:
        """Learns and counts what finished rounds left to do."""
        late, self._late = self._late, []
        for job in late:
            job()
        self._settling.counts.tell()

    def _hidden_s(self) -> float:
        """Seconds of a draft that pass behind the other cohort's step."""
        return self._learning.verify_s if self.pipelining.overlaps() else 0.0

    def _say_uncosted(self, cohort: Cohort) -> None:
        if self.cost.verify is None and not self._said_uncosted and cohort.policies.adaptive.any():
            self._said_uncosted = True
            name = self._verifier.facts.name
            log.warning("lane.no_cost_curve", verifier=name, effect="greedy and async verify everything")

    # The steps.

    def _gather(self, part: int) -> list[Turn]:
        turns = []
        halved = self.pipelining.overlaps()
        for track in list(self._tracks.values()):
            sequence = track.sequence
            if sequence.state is State.READY and not (halved and sequence.number & 1 != part):
                self._feeding.between_rounds(track)
                sequence.apply(Event.GATHERED)
                turns.append(Turn.begin(track))
        return turns

    def _ask_whom(self, turns: Sequence[Turn], plan: Plan) -> dict[DrafterPort, list[Turn]]:
        asked: list[Turn] = []
        for turn, able, drafted, rests in zip(
            turns, plan.able.tolist(), plan.drafted.tolist(), plan.resting.tolist(), strict=True
        ):
            if rests:
                self._feeding.rest(turn.track)
            elif turn.track.feed is Feed.RESTING:
                self._feeding.wake(turn.track)
            if able and not drafted and turn.track.answer.room >= 2:
                turn.empty_because = "bypass"
            else:
                turn.want(plan.slots)
                asked.append(turn)
        return self._drafting.sort(asked)

    def _terms(self, turns: Sequence[Turn], cohort: Cohort, orders: Mapping[DrafterPort, Sequence[Turn]]) -> Terms:
        """Only rows that were asked a draft for share the budget: of the others nothing is to be verified."""
        draft_s = max(self._drafting.seconds(orders) - self._hidden_s(), 0.0)
        budget = None
        if (cohort.policies.kind == Kind.ASYNC).any():
            asked = {turn.cursor.sequence for its in orders.values() for turn in its}
            drafted = np.fromiter((turn.cursor.sequence in asked for turn in turns), np.bool_, len(turns))
            rows = int((drafted & (cohort.policies.kind == Kind.ASYNC)).sum())
            step = self.cost.of_round_measured(cohort.context, draft_s, len(turns), cohort.extra_tokens)
            if step is not None:
                tokens = len(cohort.row) + cohort.extra_tokens
                budget = self._budget.slots(rows, tokens, float(cohort.weight.sum()), step)
        step = self.cost.of_round(cohort.context, draft_s, len(turns), cohort.extra_tokens)
        return Terms(step, cohort.extra_tokens, budget)

    async def _settled(self, reply: Future[Judged], orders: Sequence[VerifyOrder]) -> tuple[Future[Judged], bool]:
        """Waits; asks once more when half of the time is over, in case a message got lost.

        The verifier answers the same command with the same verdicts, whether it has carried it out before or not.
        """
        await settled((reply,), self._pace.verify_s / 2, self._clock)
        if reply.done():
            return reply, False
        self._metrics.asked_again.labels(kind="verify").inc()
        reply = self._verifier.verify(orders)
        await settled((reply,), self._pace.verify_s / 2, self._clock)
        return reply, True

    async def _verify(
        self, part: int, turns: Sequence[Turn], cohort: Cohort, *, calm: bool
    ) -> tuple[Judged | None, float]:
        """Verdicts on every prefix, and how long they took; None when there is nobody left to ask or to ask for."""
        if not turns or self._closed:
            return None, 0.0
        orders = [turn.verify_order(self._feeding.sink(turn.track)) for turn in turns]
        for turn in turns:
            turn.track.sequence.apply(Event.SCHEDULED)
        self._metrics.cohorts.inc()
        self._metrics.control_round_trips.labels(kind="verify").inc()
        began = self._clock.time()
        alone = self._in_verification == 0
        if alone and self._judged_at is not None:
            self._metrics.pipeline_bubble.observe(began - self._judged_at)
        reply = self._verifier.verify(orders)
        self._in_verification += 1
        try:
            await let_orders_leave()
            self._feeding.order_rows()
            self._catch_up()
            self._foresight.plan_ahead(part, turns, cohort)
            reply, again = await self._settled(reply, orders)
        finally:
            self._in_verification -= 1
        took = self._clock.time() - began
        judged = result_of(reply)
        if judged is None or len(judged.verdicts) != len(turns):
            self._lose_verifier("lost in a round" if reply.done() else f"no verdict for {self._pace.verify_s:g} s")
            return None, took
        self.heard = self._judged_at = self._clock.time()
        self._metrics.verify_rpc.observe(took)
        if alone and self._in_verification == 0 and not again:
            if any(turn.block.token_ids for turn in turns):
                self.cost.speculative.verify_hops.observe(took - judged.forward_s)
            elif calm:
                self.cost.plain.verify_hops.observe(took - judged.forward_s)
        return judged, took
