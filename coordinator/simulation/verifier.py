"""A simulated verifier: the `RoundLoop` of real ones, with actions that take simulated time.

It acts as a verifier's driver does: one packed pass at a time, which prompt tokens join; prompts by
themselves after a moment without rounds; rows and orders to drafters, blocks back; reports to the
coordinator. Its tokens come from its `SimulatedPair`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from coordinator.lanes.facts import VerifierFacts
from coordinator.simulation.drafter import Answered, Key, SimulatedDrafter
from coordinator.simulation.pair import SimulatedContext
from coordinator.simulation.world import Device, Pages, SimulatedWorker, World, curve_of
from dspark.rounds import events
from dspark.rounds.control import (
    Admission,
    Down,
    DrafterAt,
    DrafterUse,
    Listener,
    PassReport,
    PrefillStats,
    Timing,
    Up,
)
from dspark.rounds.loop import RoundLoop
from dspark.rounds.orders import OrderTimeouts
from dspark.rounds.plan import Plan
from dspark.rounds.spans import RoundSpans
from dspark.types import Verdict

RIDING = 512  # prompt tokens of one pass, as `verify.step_prefill_tokens`
IDLE_S = 0.02  # without a pass, after which prompts run by themselves


@dataclass(slots=True)
class _SimulatedPrompt:
    """A prompt in its prefill."""

    held: SimulatedContext
    run: int = 0  # tokens so far
    passed_over: bool = False  # as the oldest, when tokens were dealt last

    @property
    def left(self) -> int:
        return len(self.held.tokens) - self.run


@dataclass(slots=True)
class _Cohort:
    """Times of a cohort's round so far."""

    ordered_at: float | None = None
    block_at: float = 0.0
    draft_s: float = 0.0


class SimulatedVerifier(SimulatedWorker):
    """Implements `RoundsPort` without messages."""

    def __init__(
        self,
        world: World,
        name: str,
        processor: Device,
        drafters: Sequence[SimulatedDrafter],
        waits: OrderTimeouts | None = None,
    ) -> None:
        """processor: of its coordinator, where reports are settled one after the other."""
        super().__init__(world)
        self.processor, self._pair, self._pool = processor, world.pair, drafters
        self.pages = Pages(world.kv.pages, world.kv.page_size, self._free)
        self._rounds = RoundLoop(self.pages, waits)
        self._listener: Listener | None = None
        self.held: dict[tuple[int, int], SimulatedContext] = {}  # by sequence and epoch
        self._numbered: dict[int, SimulatedDrafter] = {}
        self._line: list[_SimulatedPrompt] = []
        self._blocks: dict[tuple[int, int], Sequence[int]] = {}  # the newest of each sequence
        self._spans = RoundSpans()
        self._cohorts = (_Cohort(), _Cohort())
        # seconds, tokens, prompt tokens among them, mean context
        self._passes: dict[int, tuple[float, int, int, float]] = {}
        self._running = 0
        self._last_pass = -IDLE_S
        self._pumping = False
        self._news: list[Up] = []
        self._tick: Any = None
        self._carry_out: dict[type, Callable[[Any], object]] = {
            events.Prefill: self._prefill,
            events.CallBackPrefill: self._call_back,
            events.OpenAtDrafter: self._open_at,
            events.CloseAtDrafter: self._close_at,
            events.SendRows: self._send_rows,
            events.SendOrder: self._send_order,
            events.RunPass: self._run,
            events.Report: self._report,
            events.Released: self._news.append,
            events.DrafterEvent: self._drafter_event,
        }
        spec = world.spec
        self.facts = VerifierFacts(
            name=name,
            endpoint=name,
            incarnation=1,
            model="synthetic",
            fingerprint=spec.fingerprint,
            vocab_size=spec.vocabulary,
            context_length=spec.context_length,
            hidden_size=spec.feature_width,
            projection=spec.fingerprint,
            page_size=world.kv.page_size,
            pages_total=world.kv.pages,
            attention_path="synthetic",
            stop_token_ids=(),
            cost=curve_of(spec.verify),
        )

    # The coordinator's side.

    def listen(self, listener: Listener) -> None:
        self._listener = listener

    def tell(self, orders: Sequence[Down]) -> None:
        if not self.closed:
            self.command(0, partial(self._told, tuple(orders)))

    def close(self, why: str) -> None:
        """Closes the verifier: everything it held is gone."""
        if self.closed:
            return
        self.closed = True
        for drafts in self._pool:
            drafts.forget_all(self.facts.name)
        self.held.clear()
        if self._tick is not None:
            self._tick.cancel()
        if self._listener is not None:
            self._listener.lost(why)

    def _told(self, orders: Sequence[Down]) -> None:
        told: list[events.Told | Plan] = []
        for each in orders:
            if isinstance(each, Admission):
                held = SimulatedContext(each)
                self._pair.admitted(held)
                self.held[each.admit.sequence, each.admit.epoch] = held
                told.append(each.admit)
            elif isinstance(each, DrafterAt):
                told.extend(self._drafter_at(each))
            else:
                told.append(each)
        self._feed(*told)

    def _drafter_at(self, at: DrafterAt) -> list[events.DrafterLost]:
        known = self._numbered.get(at.drafter)
        if at.use is DrafterUse.GONE:
            return [events.DrafterLost(at.drafter, "gone")] if known is not None else []
        for drafts in self._pool:
            if (drafts.facts.endpoint, drafts.facts.incarnation) == (at.endpoint, at.incarnation):
                self._numbered[at.drafter] = drafts
                drafts.users[self.facts.name] = partial(self._feed, events.DrafterLost(at.drafter))
        return []

    def _feed(self, *told: events.Told | Plan) -> None:
        if self.closed:
            return
        for action in self._rounds.feed_all(told, self.world.loop.time()):
            self._carry_out[type(action)](action)
        self._say()
        if self._tick is not None:
            self._tick.cancel()
        due = self._rounds.next_at()
        self._tick = None if due is None else self.world.loop.call_at(due, self._feed)

    def _say(self) -> None:
        news, self._news[:] = tuple(self._news), []
        if not news:
            return
        rounds = sum(len(each.report.rounds) for each in news if isinstance(each, PassReport))
        seconds = self.world.hops.settling(rounds) if rounds else 0.0

        def settled(_: float) -> None:
            if self._listener is not None and not self.closed:
                self._listener.heard(news)
                self.world.trail(self.processor, seconds)

        self.world.hop(partial(self.processor.submit, lambda: seconds, settled, urgent=True))

    # Drafters.

    def _key(self, sequence: int, epoch: int) -> Key:
        return self.facts.name, sequence, epoch

    def _there(self, drafter: int) -> SimulatedDrafter | None:
        """The drafter of this number; without one None, and the loop gets a `DrafterLost`."""
        drafts = self._numbered.get(drafter)
        if drafts is None or drafts.closed:
            self.world.loop.call_soon(self._feed, events.DrafterLost(drafter))
            return None
        return drafts

    def _drafter_event(self, event: events.DrafterEvent) -> None:
        """Reports a drafter's event; unless it was only late, it loses this verifier's contexts."""
        if event.what != "late" and event.drafter in self._numbered:
            self._numbered[event.drafter].forget_all(self.facts.name)
        self._news.append(event)

    def _open_at(self, action: events.OpenAtDrafter) -> None:
        drafts = self._there(action.drafter)
        if drafts is not None and drafts.full:
            self._news.append(events.DrafterEvent(action.drafter, "full"))
        elif drafts is not None:
            drafts.open(self._key(action.sequence, action.epoch))

    def _close_at(self, action: events.CloseAtDrafter) -> None:
        if action.drafter in self._numbered:
            self._numbered[action.drafter].forget(self._key(action.sequence, action.epoch))

    def _send_rows(self, action: events.SendRows) -> None:
        drafts = self._there(action.drafter)
        if drafts is None:
            return

        def arrived() -> None:
            rows = drafts.take(self._key(action.sequence, action.epoch), action.start, action.stop)
            if rows is not None:
                came = events.DrafterReady(action.drafter, action.sequence, action.epoch, rows)
                self.world.hop(self._feed, came)

        self.world.hop(arrived)

    def _send_order(self, action: events.SendOrder) -> None:
        drafts, now = self._there(action.drafter), self.world.loop.time()
        cohort = self._cohorts[self._rounds.plan.cohort(action.rows[0].sequence)]
        cohort.ordered_at = now if cohort.ordered_at is None else cohort.ordered_at
        if drafts is None:
            return

        def answered(said: Answered) -> None:
            self.world.hop(self.serve, len(said.blocks), partial(came, said))

        def came(said: Answered) -> None:
            if self.closed:
                return
            cohort.block_at = self.world.loop.time()
            cohort.draft_s = max(cohort.draft_s, said.forward_s)
            for row, block in zip(action.rows, said.blocks, strict=True):
                self._blocks[row.sequence, row.epoch] = block.token_ids
            blocks = [block.confidence for block in said.blocks]
            why = ["" if block.token_ids else "rows missing" for block in said.blocks]
            self._feed(events.BlocksCame(action.order, blocks, said.watermarks, why))

        held = [self.held.get((row.sequence, row.epoch)) for row in action.rows]
        drafts.order(self.facts.name, action, held, answered)

    # The device.

    def _prefill(self, action: events.Prefill) -> None:
        self._line.append(_SimulatedPrompt(self.held[action.sequence, action.epoch]))
        self._pump()

    def _call_back(self, action: events.CallBackPrefill) -> None:
        """Refuses a prompt that is still in line; in its last pass it is not called back."""
        for prompt in self._line:
            admit = prompt.held.admission.admit
            if (admit.sequence, admit.epoch) == (action.sequence, action.epoch):
                self._line.remove(prompt)
                self.world.loop.call_soon(
                    self._feed, events.PrefillRefused(action.sequence, action.epoch)
                )
                return

    def _ride(self, budget: int, most: int) -> tuple[list[_SimulatedPrompt], float, int]:
        """Runs the next tokens of prompts in line, dealt by turns to those with least left and to
        the oldest: (prompts completed, seconds, tokens)."""
        done: list[_SimulatedPrompt] = []
        seconds, tokens = 0.0, 0
        line = list(self._line)
        if len(line) > 1:
            line[0].passed_over = not line[0].passed_over
            if line[0].passed_over:
                line.sort(key=lambda prompt: prompt.left)
        for prompt in line[:most]:
            count = min(budget - tokens, prompt.left)
            if not count:
                break
            prompt.run, tokens = prompt.run + count, tokens + count
            seconds += self.world.spec.prefill_seconds(count, prompt.run)
            if not prompt.left:
                done.append(prompt)
        self._line = [prompt for prompt in self._line if prompt.left]
        return done, seconds, tokens

    def _prefilled(
        self, prompts: Sequence[_SimulatedPrompt]
    ) -> list[events.Prefilled | events.PrefillRefused]:
        told: list[events.Prefilled | events.PrefillRefused] = []
        for prompt in prompts:
            held, admit = prompt.held, prompt.held.admission.admit
            key = (admit.sequence, admit.epoch)
            there = key in self.held  # else it was dropped meanwhile
            if not there or self.pages.grow(*key, len(held.tokens), 0) is None:
                told.append(events.PrefillRefused(*key))
                continue
            ((token,),) = self._pair.judge([(held, ())])
            held.tokens.append(token)
            told.append(events.Prefilled(*key, token))
        return told

    def _pump(self) -> None:
        """Runs prompts by themselves, while no pass runs and none has for `IDLE_S`."""
        if not self._line or self._pumping or self.closed:
            return
        self._pumping = True
        quiet_s = self.world.loop.time() - self._last_pass
        if self._running or quiet_s < IDLE_S:
            self.world.loop.call_later(max(IDLE_S - quiet_s, IDLE_S / 4), self._again)
            return
        done: list[_SimulatedPrompt] = []

        def begin() -> float:
            prompts, seconds, _ = self._ride(self.world.kv.prefill_chunk, 1)
            done.extend(prompts)
            return seconds

        def over(_: float) -> None:
            self._feed(*self._prefilled(done))
            self._again()

        self.device.submit(begin, over, urgent=False)

    def _again(self) -> None:
        self._pumping = False
        self._pump()

    def _run(self, action: events.RunPass) -> None:
        self._running += 1
        rows = action.rows
        own = len(rows) + sum(row.prefix for row in rows)
        context = sum(row.committed_len for row in rows) / len(rows)
        done: list[_SimulatedPrompt] = []
        ridden = 0

        def begin() -> float:
            nonlocal ridden
            prompts, more, ridden = self._ride(RIDING, len(self._line))
            done.extend(prompts)
            return self.world.spec.verify.seconds(own, context) + more

        def over(seconds: float) -> None:
            self._running -= 1
            self._last_pass = self.world.loop.time()
            if self.closed:
                return
            self._passes[action.number] = (seconds, own, ridden, context)
            self._feed(events.PassEnded(action.number, self._judge(action)), *self._prefilled(done))

        self.device.submit(begin, over, urgent=True)

    def _judge(self, action: events.RunPass) -> Sequence[Verdict | None]:
        asked = []
        for row in action.rows:
            key = (row.sequence, row.epoch)
            asked.append((self.held[key], self._blocks[key][: row.prefix] if row.prefix else ()))
        drawn = self._pair.judge(asked)
        for (held, _), tokens in zip(asked, drawn, strict=True):
            held.tokens.extend(tokens)
        return [Verdict(tokens) for tokens in drawn]

    # Reports.

    def _report(self, report: events.Report) -> None:
        if report.number == 0:
            self._news.append(PassReport(report, started=PrefillStats()))
            return
        number = self._rounds.plan.cohort(report.rounds[0].sequence)
        cohort = self._cohorts[number]
        seconds, tokens, ridden, context = self._passes.pop(report.number)
        waited = (
            max(cohort.block_at - cohort.ordered_at, 0.0) if cohort.ordered_at is not None else 0.0
        )
        whose = (each.sequence for each in report.rounds)
        round_s = self._spans.ended(number, whose, self.world.loop.time(), seconds)
        timing = Timing(seconds, round_s, cohort.draft_s, waited)
        cohort.ordered_at, cohort.draft_s = None, 0.0
        self._news.append(
            PassReport(report, timing, context, tokens, ridden, pages_free=self.pages.left)
        )

    def _free(self, key: tuple[int, int]) -> None:
        for kept in (self.held, self._blocks):
            kept.pop(key, None)
