"""A verifier behind the lane's own port, without messages: what it says and how long it takes comes from the file of a
synthetic pair, what lies between from `Hops`.

It does what the synthetic service does (`verify_service.synthetic`, `verify_service.intake`): one packed pass per
cohort, in which prompts ride; prompts by themselves where no round has come for a moment.
"""

from __future__ import annotations

from asyncio import Future
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from coordinator.lanes.ports import Declined, Judged, Prefilled, PrefillOrder, Sink, VerifierFacts, VerifyOrder
from coordinator.simulation.device import Device
from coordinator.simulation.world import Held, SimulatedWorker, World, curve_of
from dspark.types import Cursor, RefusalReason, Verdict

RIDING = 512  # prompt tokens of one round, as `verify.step_prefill_tokens`
IDLE_S, LIVELY_S = 0.02, 0.5  # as in `verify_service.intake`


@dataclass(slots=True)
class _Prompt:
    """One prompt on its way in."""

    order: PrefillOrder
    future: Future[Prefilled | Declined]
    key: int
    run: int = 0  # tokens
    seconds: float = 0.0  # of the pass that completed it


class SimulatedVerifier(SimulatedWorker):
    """Keeps `ports.VerifierPort`."""

    def __init__(self, world: World, name: str, processor: Device, pages: int, page_size: int = 16) -> None:
        super().__init__(world)
        self.processor = processor  # of its coordinator: replies are settled one after the other
        self._line: deque[_Prompt] = deque()  # prompts on their way in
        self._rounds = 0  # cohorts here now
        self._last_round = -LIVELY_S  # when one ended
        self._pumping = False
        self._pages: dict[int, int] = {}  # by sequence; handed out as sequences grow
        spec = world.law.spec
        self.facts = VerifierFacts(
            name=name,
            endpoint=name,
            incarnation=1,
            pid=0,
            model="synthetic",
            fingerprint=spec.fingerprint,
            vocab_size=spec.vocabulary,
            context_length=spec.context_length,
            hidden_size=spec.feature_width,
            projection=spec.fingerprint,
            page_size=page_size,
            pages_total=pages,
            attention_path="synthetic",
            stop_token_ids=(),
            cost=curve_of(spec.verify),
        )

    def prefill(self, order: PrefillOrder) -> Future[Prefilled | Declined]:
        world, future, ids, law = self.world, self._future(), order.token_ids, order.law
        key = world.law.key(ids[0], law.seed, law.choice)
        world.sequences[order.cursor.sequence] = Held(key, world.law.domain(ids[0]), self.processor)

        def arrived() -> None:
            if not self._grows(order.cursor.sequence, len(ids)):
                world.reply(future, Declined(order.cursor, RefusalReason.NO_PAGES))
                return
            self._line.append(_Prompt(order, future, key))
            if not self._pumping:
                self._pump()

        self.command(1, arrived)
        return future

    def _ride(self, budget: int, most: int) -> tuple[list[_Prompt], float, int]:
        """The next tokens of prompts in line, first come, first served: the prompts they complete, their seconds, and
        how many they are."""
        done: list[_Prompt] = []
        seconds, taken, tokens = 0.0, 0, 0
        while self._line and budget > 0 and taken < most:
            prompt = self._line[0]
            count = min(budget, len(prompt.order.token_ids) - prompt.run)
            prompt.run += count
            budget -= count
            taken += 1
            tokens += count
            seconds += self.world.law.spec.prefill_seconds(count, prompt.run)
            if prompt.run == len(prompt.order.token_ids):
                done.append(self._line.popleft())
        for prompt in done:
            prompt.seconds = seconds
        return done, seconds, tokens

    def _prefilled(self, prompts: Sequence[_Prompt]) -> None:
        for prompt in prompts:
            order, length = prompt.order, len(prompt.order.token_ids)
            self._push(order.sink, order.cursor, 0, length)
            anchor = int(self.world.law.target(np.array([prompt.key], np.uint64), np.array([length]))[0])
            said = Prefilled(order.cursor, anchor, prompt.seconds)
            self.serve(1, partial(self.world.reply, prompt.future, said, 1, self.processor))

    def _pump(self) -> None:
        """Prompts by themselves, while no round is here and none has been for a moment."""
        self._pumping = bool(self._line)
        if not self._pumping:
            return
        quiet_s = self.world.loop.time() - self._last_round
        if self._rounds or quiet_s < IDLE_S:
            self.world.loop.call_later(max(IDLE_S - quiet_s, IDLE_S / 4), self._pump)
            return
        budget = RIDING if quiet_s < LIVELY_S else self.world.prefill_chunk
        done: list[_Prompt] = []

        def begin() -> float:
            prompts, seconds, _ = self._ride(budget, 1)
            done.extend(prompts)
            return seconds

        def over(_: float) -> None:
            self._prefilled(done)
            self._pump()

        self.device.submit(begin, over, urgent=False)

    def verify(self, orders: Sequence[VerifyOrder]) -> Future[Judged]:
        world, future = self.world, self._future()
        tokens = len(orders) + sum(len(order.draft_ids) for order in orders)
        context = sum(order.cursor.committed_len for order in orders) / max(len(orders), 1)

        done: list[_Prompt] = []
        ridden = 0  # tokens of prompts

        def arrived() -> None:
            self._rounds += 1
            self.device.submit(begin, over, urgent=True)

        def begin() -> float:
            nonlocal ridden
            prompts, more, ridden = self._ride(RIDING, len(self._line))
            done.extend(prompts)
            return world.law.spec.verify.seconds(tokens, context) + more

        def over(seconds: float) -> None:
            self._rounds -= 1
            self._last_round = world.loop.time()
            said = Judged(self._judge(orders), seconds, tokens + ridden, ridden)
            self.serve(len(orders), partial(world.reply, future, said, len(orders), self.processor))
            self._prefilled(done)  # behind the verdicts: their first tokens are drawn after the pass

        self.command(len(orders), arrived)
        return future

    def resend(self, cursor: Cursor, sink: Sink, from_position: int) -> Future[Declined | None]:
        future = self._future()
        self._push(sink, cursor, from_position, cursor.committed_len - 1)
        self.world.reply(future, None)
        return future

    def release(self, cursor: Cursor) -> None:
        self.world.sequences.pop(cursor.sequence, None)
        self._pages.pop(cursor.sequence, None)

    def _grows(self, sequence: int, tokens: int) -> bool:
        """Whether there are pages for so many tokens of a sequence; takes them if so."""
        held, wanted = self._pages.get(sequence, 0), -(-tokens // self.facts.page_size)
        if self.facts.pages_total and sum(self._pages.values()) - held + wanted > self.facts.pages_total:
            return False
        self._pages[sequence] = max(held, wanted)
        return True

    def _judge(self, orders: Sequence[VerifyOrder]) -> tuple[Verdict | Declined, ...]:
        widest = 1 + max(len(order.draft_ids) for order in orders)
        held = [self.world.sequences.get(order.cursor.sequence) for order in orders]
        keys = np.array([one.key if one is not None else 0 for one in held], np.uint64)
        lengths = np.array([order.cursor.committed_len for order in orders])
        said = self.world.law.target(keys[:, None], lengths[:, None] + np.arange(widest)).tolist()
        verdicts: list[Verdict | Declined] = []
        for order, ids in zip(orders, said, strict=True):
            if not self._grows(order.cursor.sequence, order.cursor.committed_len + len(order.draft_ids)):
                verdicts.append(Declined(order.cursor, RefusalReason.OUT_OF_PAGES))
                continue
            accepted = 0
            for drafted in order.draft_ids:
                if drafted != ids[accepted]:
                    break
                accepted += 1
            cursor = order.cursor
            through = cursor.committed_len + accepted
            self._push(order.sink, cursor, cursor.committed_len - 1, through)
            verdicts.append(Verdict(cursor, accepted, ids[accepted], through, len(order.draft_ids)))
        return tuple(verdicts)

    def _push(self, sink: Sink | None, cursor: Cursor, start: int, stop: int) -> None:
        if sink is not None:
            self.world.drafters[sink].take(cursor, start, stop)
