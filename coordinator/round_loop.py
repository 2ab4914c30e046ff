"""The rounds of a lane: gather, plan, draft, schedule, verify, settle; one cohort at a time, or two that take turns.

With two cohorts one is drafted for while the other is verified. They are told apart by sequence number, never by
content. Sequences join and leave between rounds. A late or lost draft is an empty block; a verifier that gives no
verdict is let go.

Invariant 2, no peeking: who is asked for a draft and for how long a block, the budget, weights and trust, the cost of
the step and the deadline are fixed before the draft is asked for; only `prefix_scheduler` looks at confidences.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import structlog

from coordinator.budget import Budget
from coordinator.clock import Clock, settled
from coordinator.drafting import Drafting, result_of
from coordinator.evidence import Evidence
from coordinator.feeding import Feeding
from coordinator.pipelining import Pipelining
from coordinator.planning import Cohort, Plan, Planner
from coordinator.policy import Columns, Kind
from coordinator.ports import DrafterPort, Judged, VerifierPort
from coordinator.rounds import Blocks, Terms, Turn, choose_prefixes, mean_context
from coordinator.sequence import Event, State
from coordinator.settling import Settling
from coordinator.step_cost import StepCost
from coordinator.track import Feed, Track
from dspark.runtime.telemetry import Metrics
from dspark.types import Verdict

log = structlog.get_logger("dspark.rounds")

LENIENCE = 1.1  # two cohorts are tried when they are expected to take less than this much of one's time


@dataclass(frozen=True, slots=True)
class Pace:
    """How rounds are conducted."""

    verify_s: float = 10.0  # longest wait for the verdicts of a cohort
    bypass: bool = True  # adaptive sequences whose drafts do not pay go without
    explore: float = 1 / 64  # share of their rounds that are drafted nevertheless
    cohorts: int = 0  # 1 or 2 that take turns; 0: whichever commits faster


class RoundLoop:
    """Drives the tracks of one lane. `lose_verifier` is called when it gives no verdict, and closes the lane."""

    def __init__(
        self,
        verifier: VerifierPort,
        tracks: Mapping[int, Track],
        feeding: Feeding,
        drafting: Drafting,
        settling: Settling,
        *,
        pace: Pace,
        lose_verifier: Callable[[str], None],
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self.cost = StepCost(verifier.facts.cost)
        self.evidence = Evidence()
        self.pipelining = Pipelining(pace.cohorts)
        self.rounds = 0
        self.committed = 0
        self.heard = clock.time()  # when the verifier last gave a verdict
        self._verifier, self._tracks = verifier, tracks
        self._feeding, self._drafting, self._settling = feeding, drafting, settling
        self._pace, self._lose_verifier, self._clock, self._metrics = pace, lose_verifier, clock, metrics
        self._planner = Planner(self.cost, self.evidence, explore=pace.explore, bypass=pace.bypass)
        self._budget = Budget()
        self._wake: dict[int, asyncio.Future[None]] = {}
        self._second: asyncio.Task[None] | None = None
        self._in_verification = 0
        self._verify_s = 0.0  # device seconds of the last step
        self._extra_tokens = 0.0  # of the last step, besides its cohort: prefills
        self._closed = False
        self._said_uncosted = False

    async def run(self) -> None:
        """Until closed. A second cohort has a task of its own while there is one."""
        try:
            while not self._closed:
                if self._second is not None and self._second.done():
                    self._second.result()  # what went wrong there goes wrong here
                if self.pipelining.depth > 1 and (self._second is None or self._second.done()):
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
        self.kick()

    def kick(self) -> None:
        """Somebody may be ready for a round."""
        for waiting in self._wake.values():
            if not waiting.done():
                waiting.set_result(None)

    async def _run_second(self) -> None:
        while not self._closed and self.pipelining.depth > 1:
            await self._turn_over(1)

    async def _turn_over(self, part: int) -> None:
        """One round of a part, or a wait for somebody to be ready."""
        turns = self._gather(part)
        if turns:
            await self._round(turns)
        elif not self._closed:
            self._wake[part] = asyncio.get_running_loop().create_future()
            await self._wake[part]

    async def _round(self, turns: list[Turn]) -> None:
        began = self._clock.time()
        cohort = self._cohort(turns)
        hidden_s = self._verify_s if self.pipelining.depth > 1 else 0.0  # of the draft, behind the other cohort's step
        able = Counter(turn.track.drafter for turn in turns if turn.track.drafter is not None)

        def draft_seconds(share: float, slots: int) -> float:
            asked = {drafter: max(round(share * count), 1) for drafter, count in able.items()} if share > 0.0 else {}
            return max(self._drafting.would_take(asked, cohort.context, slots) - hidden_s, 0.0)

        plan = self._planner.plan(cohort, draft_seconds)
        asked = self._ask_whom(turns, plan)
        terms = self._terms(cohort, max(self._drafting.seconds(asked) - hidden_s, 0.0))
        trust = self.evidence.trust(cohort.row)
        drafted_s = await self._drafting.fill(asked)
        alive = np.fromiter((turn.track.sequence.state is State.DRAFTING for turn in turns), np.bool_, len(turns))
        if not alive.all():  # some ended meanwhile
            turns = [turn for turn, stays in zip(turns, alive.tolist(), strict=True) if stays]
            cohort, trust = cohort.only(alive), trust[alive]
        blocks = Blocks.of(turns)
        if blocks.confidence.shape[1]:
            choose_prefixes(turns, blocks, cohort.policies, terms, cohort.weight, trust)
        judged, verified_s = await self._verify(turns)
        if judged is None:
            return
        committed = self._settling.settle(turns, judged.verdicts)
        self.rounds += len(turns)
        self.committed += committed
        self._learn(turns, cohort, blocks, judged, plan)
        now = self._clock.time()
        if self.pipelining.depth == 1:
            overheads = self.cost.speculative if asked else self.cost.plain
            overheads.rest.observe(now - began - drafted_s - verified_s)
        if self.pipelining.judged(now, committed, len(self._tracks)):
            self.pipelining.may_try(self._two_could_win(turns, cohort.context, asked))

    # The steps.

    def _gather(self, part: int) -> list[Turn]:
        turns = []
        halved = self.pipelining.depth > 1
        for track in list(self._tracks.values()):
            sequence = track.sequence
            if sequence.state is State.READY and not (halved and sequence.number & 1 != part):
                self._feeding.between_rounds(track)
                sequence.apply(Event.GATHERED)
                turns.append(Turn.begin(track))
        return turns

    def _cohort(self, turns: Sequence[Turn]) -> Cohort:
        count = len(turns)
        tracks = [turn.track for turn in turns]
        policies = Columns.of([track.request.policy for track in tracks])
        if self.cost.verify is None and not self._said_uncosted and policies.adaptive.any():
            self._said_uncosted = True
            name = self._verifier.facts.name
            log.warning("lane.no_cost_curve", verifier=name, effect="greedy and async verify everything")
        return Cohort(
            sequence=np.fromiter((turn.cursor.sequence for turn in turns), np.uint64, count),
            round=np.fromiter((turn.cursor.round for turn in turns), np.uint64, count),
            row=np.fromiter((track.row for track in tracks), np.int64, count),
            weight=np.fromiter((track.request.weight for track in tracks), np.float64, count),
            policies=policies,
            able=np.fromiter((self._feeding.reachable(track) for track in tracks), np.bool_, count),
            fed=np.fromiter((track.feed is Feed.FED for track in tracks), np.bool_, count),
            context=mean_context(turns),
            extra_tokens=self._extra_tokens,
        )

    def _ask_whom(self, turns: Sequence[Turn], plan: Plan) -> dict[DrafterPort, list[Turn]]:
        asked: list[Turn] = []
        for turn, able, drafted, rests in zip(
            turns, plan.able.tolist(), plan.drafted.tolist(), plan.resting.tolist(), strict=True
        ):
            if rests:
                self._feeding.rest(turn.track)
            elif turn.track.feed is Feed.RESTING:
                self._feeding.wake(turn.track)
            if able and not drafted:
                turn.empty_because = "bypass"
            else:
                turn.slots = plan.slots
                asked.append(turn)
        return self._drafting.sort(asked)

    def _terms(self, cohort: Cohort, draft_s: float) -> Terms:
        budget = None
        if (cohort.policies.kind == Kind.ASYNC).any():
            rows = cohort.policies.kind == Kind.ASYNC
            step = self.cost.of_round_measured(cohort.context, draft_s)
            if step is not None:
                tokens = len(cohort.row) + cohort.extra_tokens
                budget = self._budget.slots(int(rows.sum()), tokens, float(cohort.weight.sum()), step)
        return Terms(self.cost.of_round(cohort.context, draft_s), cohort.extra_tokens, budget)

    async def _verify(self, turns: Sequence[Turn]) -> tuple[Judged | None, float]:
        """Verdicts on every prefix, and how long they took; None when there is nobody left to ask or to ask for."""
        if not turns or self._closed:
            return None, 0.0
        orders = [turn.verify_order(self._feeding.sink(turn.track)) for turn in turns]
        for turn in turns:
            turn.track.sequence.apply(Event.SCHEDULED)
        self._metrics.cohorts.inc()
        self._metrics.control_round_trips.labels(kind="verify").inc()
        began = self._clock.time()
        reply = self._verifier.verify(orders)
        alone = self._in_verification == 0
        self._in_verification += 1
        try:
            await settled((reply,), self._pace.verify_s, self._clock)
        finally:
            self._in_verification -= 1
        took = self._clock.time() - began
        judged = result_of(reply)
        if judged is None or len(judged.verdicts) != len(turns):
            self._lose_verifier("lost in a round" if reply.done() else f"no verdict for {self._pace.verify_s:g} s")
            return None, took
        self.heard = self._clock.time()
        self._metrics.verify_rpc.observe(took)
        if alone and self._in_verification == 0:
            drafted = any(turn.block.token_ids for turn in turns)
            overheads = self.cost.speculative if drafted else self.cost.plain
            overheads.verify_hops.observe(took - judged.forward_s)
        return judged, took

    def _two_could_win(
        self, turns: Sequence[Turn], context: float, asked: Mapping[DrafterPort, Sequence[Turn]]
    ) -> bool:
        """Whether halves that overlap are expected to come near one cohort: the model of the design, leniently."""
        if not asked or self.cost.verify is None:
            return bool(asked)
        tokens = float(len(turns) + sum(turn.prefix for turn in turns))
        counts = {drafter: len(its) for drafter, its in asked.items()}
        slots = max(turn.slots for its in asked.values() for turn in its)

        def draft_s(share: float) -> float:
            some = {drafter: max(round(share * count), 1) for drafter, count in counts.items()}
            return self._drafting.would_take(some, context, slots)

        rest, half = self.cost.speculative.seconds, self.cost.verify.seconds(tokens / 2.0, context)
        two = max(2.0 * half, half + draft_s(0.5) + rest)
        return two < LENIENCE * (self.cost.verify.seconds(tokens, context) + draft_s(1.0) + rest)

    def _learn(self, turns: Sequence[Turn], cohort: Cohort, blocks: Blocks, judged: Judged, plan: Plan) -> None:
        """What this round says about the next ones."""
        prefixes = np.fromiter((turn.prefix for turn in turns), np.int64, len(turns))
        self._verify_s = judged.forward_s
        self._extra_tokens = max(float(judged.tokens - len(turns) - int(prefixes.sum())), 0.0)
        if self.cost.verify is not None:
            self.cost.verify.observe(judged.tokens, cohort.context, judged.forward_s)
        if not blocks.confidence.shape[1]:
            return
        accepted = np.fromiter(
            (verdict.accepted if isinstance(verdict, Verdict) else -1 for verdict in judged.verdicts),
            np.int64,
            len(turns),
        )
        row = np.fromiter((turn.track.row for turn in turns), np.int64, len(turns))  # -1 once a sequence has ended
        counts = (blocks.lengths > 0) & (accepted >= 0) & (row >= 0)
        alive = blocks.alive()
        self.evidence.observe(
            row[counts],
            alive[counts],
            blocks.lengths[counts],
            prefixes[counts],
            accepted[counts],
            price=self._planner.price,
            least_weight=plan.least_weight,
        )
        asynchronous = counts & (cohort.policies.kind == Kind.ASYNC)
        if asynchronous.any():
            worth = self.evidence.trust(row[asynchronous]) * cohort.weight[asynchronous]
            self._budget.remember(alive[asynchronous] * worth[:, None])
