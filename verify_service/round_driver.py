"""Runs the rounds of one control stream: `RoundLoop` with its engine, drafters and coordinator.

All work happens in turns, one at a time. A turn feeds pending events to the loop and performs its
actions. Events from the event loop get a turn on the engine's thread. Events of a drafter's stream
or of the pass thread get a turn there, because each change of threads delays a round.

A pass is prepared in a turn, computed on the pass thread, and ended in a turn. With two cohorts the
next pass is ready when one ends, and runs first. Reports to the coordinator are sent after the
turn by the engine's thread, as no round waits for them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import structlog

from dspark.rounds.control import Admission, Down, DrafterAt, PassReport, Up
from dspark.rounds.events import (
    CallBackPrefill,
    CloseAtDrafter,
    DrafterEvent,
    GoneReason,
    OpenAtDrafter,
    PassEnded,
    Prefill,
    Prefilled,
    PrefillRefused,
    Released,
    Report,
    RunPass,
    SendOrder,
    SendRows,
    Told,
)
from dspark.rounds.loop import RoundLoop
from dspark.rounds.orders import OrderTimeouts
from dspark.rounds.plan import Plan
from dspark.runtime.worker import Worker
from dspark.types import Refusal, RefusalReason
from verify_service.drafters import Drafters
from verify_service.engine_core import EngineCore
from verify_service.prompts import IDLE_S, FinishedPrompt, Prompts
from verify_service.round_news import RoundNews
from verify_service.round_passes import RoundPasses, RunningPass
from verify_service.running_step import RunningStep

log = structlog.get_logger("dspark.rounds")

SIGN_S = 1.0  # between two signs of life of a prompt that runs in passes of its own
ENDS_S, LOOK_S = 10.0, 0.002  # timeout for the last passes of an ended stream, and poll interval

# run in a turn: makes the loop's events from something received
Came = Callable[[], Iterable[Told | Plan]]


class RoundDriver:
    """Runs the loop of one stream and is its `KVCache`. say: sends news to the coordinator; failed:
    called with a bug, after which the stream stops. Both are called on the event loop."""

    def __init__(
        self,
        worker: Worker[EngineCore],
        owner: int,
        say: Callable[[Sequence[Up]], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._failed = failed
        self._worker, self._engine, self._owner = worker, worker.engine, owner
        self._say, self._events = say, asyncio.get_running_loop()
        self._inbox: deque[Came] = deque()
        self._posted = self._over = False
        self._under_way = 0  # unfinished passes, prompt chunks included
        passes = worker.passes
        assert passes is not None
        self._device = passes
        self._timer: asyncio.TimerHandle | None = None
        # when the timer fires; written in turns and by the timer on the event loop
        self._timer_at = float("inf")
        self._admitted: dict[tuple[int, int], Admission] = {}  # of this turn
        self._more: list[Told | Plan] = []  # events caused by actions of this turn
        self._began: dict[int, FinishedPrompt] = {}  # finished prompts of this turn, by sequence
        self._last_pass = self._sign_at = 0.0
        self.grow = self._engine.grow  # of `KVCache`, and `free` below
        config = self._engine.config
        waits = OrderTimeouts(config.draft_deadline_s, config.drafter_patience_s)
        self.rounds = RoundLoop(self, waits)
        self._prompts = Prompts(self._engine, owner, self._wake)
        self._news = RoundNews(worker.device, self._events, self._surely, self._say_news)
        self._drafters = Drafters(worker, self._events, self.tell, self.tell_here, self._news)
        self._news.leaving = self._drafters.leaving
        self._passes = RoundPasses(self._engine, worker.metrics, self.rounds, self._drafters)
        self._carry: dict[type, Callable[[Any], None]] = {
            Prefill: self._prefill,
            CallBackPrefill: self._call_back,
            OpenAtDrafter: lambda asked: self._more.extend(self._drafters.open(*asked)),
            CloseAtDrafter: lambda asked: self._drafters.close(*asked),
            SendRows: self._drafters.send_rows,
            SendOrder: lambda order: self._more.extend(self._drafters.order(order)),
            RunPass: self._run_pass,
            Report: self._report,
            Released: self._news.add,
            DrafterEvent: self._drafter_event,
        }

    # Called on any thread.

    def tell(self, came: Came) -> None:
        """Queues an event for the next turn on the engine's thread."""
        self._inbox.append(came)
        self._wake()

    def tell_here(self, came: Came) -> None:
        """Queues an event and runs a turn on the calling thread, which would only hand it on."""
        self._inbox.append(came)
        self._worker.device.here(self._turn)

    def hear(self, told: Sequence[Down | PrefillRefused], seen: Callable[[], None]) -> None:
        """Queues messages of the coordinator. seen: called in the turn that handles them."""
        self.tell(lambda: self._heard(told, seen))

    def _wake(self) -> None:
        if not self._posted:
            self._posted = True
            self._worker.device.post(self._turn, self._events)

    # Called on the event loop.

    async def end(self) -> None:
        """Frees all sequences, then waits up to ENDS_S for unfinished passes."""
        if self._timer is not None:
            self._timer.cancel()
        await self._worker.device.run_surely(self._finish)
        until = time.monotonic() + ENDS_S
        while self._under_way and time.monotonic() < until:  # noqa: ASYNC110 - nothing runs for an ended stream
            await asyncio.sleep(LOOK_S)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._events.call_later(max(at - time.monotonic(), 0.0), self._time_came)

    def _time_came(self) -> None:
        self._timer_at = float("inf")
        self._wake()

    def _tell_up(self, news: Sequence[Up]) -> None:
        if not self._over:
            self._say(news)

    # Run in turns.

    def _finish(self) -> None:
        self._over = True
        try:
            self._drafters.end()
        finally:
            self._inbox.clear()
            self._engine.release_owner(self._owner)

    def _turn(self) -> None:
        self._posted = False
        self._surely(self._take_turn)

    def _take_turn(self) -> None:
        self._feed(self._take())
        self._go_on()

    def _surely(self, step: Callable[[], None]) -> None:
        """Runs a step; an exception is a bug and ends the stream."""
        if self._over:
            return
        try:
            step()
        except Exception as error:
            self._over = True
            self._events.call_soon_threadsafe(self._failed, error)
            raise

    def _go_on(self) -> None:
        """Runs a prompt chunk if no pass is unfinished; sets the timer for what is due next."""
        chunk_at = None if self._under_way else self._prompts.chunk_at(self._last_pass)
        now = time.monotonic()
        if chunk_at is not None and chunk_at <= now:
            chunk_at = None if self._run_chunk() else now + IDLE_S
        due = (self.rounds.next_at(), self._drafters.next_at(), chunk_at)
        at = min((each for each in due if each is not None), default=None)
        if at is not None and at < self._timer_at:
            self._timer_at = at
            self._events.call_soon_threadsafe(self._set_timer, at)

    # Passes: prepared in a turn, computed on the pass thread, ended in a turn.

    def _run_pass(self, run: RunPass) -> None:
        try:
            running = self._passes.begin(run)
        except Exception as error:
            log.error("pass.not_begun", sequences=len(run.rows), exc_info=error)
            self._more.append(PassEnded(run.number, [None] * len(run.rows)))
            return
        self._compute(running.step, lambda: self._pass_ended(running))

    def _pass_ended(self, running: RunningPass) -> Iterable[Told]:
        told = self._passes.ended(running)
        self._last_pass = time.monotonic()
        return told

    def _run_chunk(self) -> bool:
        """Starts a prompt chunk in a pass of its own; False if no prompt can run."""
        step = self._prompts.begin_chunk(self._last_pass)
        if step is None:
            return False  # prompts that failed are collected in the turn of the next look
        self._compute(step, lambda: self._chunk_ended(step))
        return True

    def _chunk_ended(self, step: RunningStep) -> Iterable[Told]:
        judged = self._engine.end(step)
        self._worker.metrics.forward_seconds.labels(kind="prefill").observe(
            judged.forward_ns * 1e-9
        )
        if (now := time.monotonic()) >= self._sign_at:
            self._sign_at = now + SIGN_S
            self._say_news(())  # else a long prompt looks like a verifier that hangs
        return ()  # `_take` collects the progress of prompts

    def _compute(self, step: RunningStep, end: Came) -> None:
        self._under_way += 1
        self._device.post(partial(self._computed, step, end), self._events)

    def _computed(self, step: RunningStep, end: Came) -> None:
        """Computes a step on the pass thread. Raises if nothing of it ran, to report the device's
        health."""
        bug = None
        try:
            step.run()
        except Exception as error:
            bug = error
        after = partial(self._after, step, end, bug)
        if self._device.queued:  # the next pass runs first
            self._worker.device.post(after, self._events)
        else:
            self._worker.device.here(after)
        if (wrong := bug or step.failure) is not None:
            raise wrong

    def _after(self, step: RunningStep, end: Came, bug: Exception | None) -> None:
        """Ends the step in any case, to free what is held for it, and feeds its events."""
        self._under_way -= 1
        told: Iterable[Told | Plan] = ()
        try:
            if bug is None and not self._over:
                told = end()
            else:
                self._engine.end(step)
        except Exception as error:
            bug = bug or error
        if self._over:
            return
        self._inbox.append((lambda: told) if bug is None else partial(_fail, bug))
        self._surely(self._take_turn)

    def _take(self) -> list[Told | Plan]:
        told: list[Told | Plan] = []
        while self._inbox:
            told += self._inbox.popleft()()
        now = time.monotonic()
        told += self._told_of(self._prompts.collect()) if len(self._prompts) else ()
        return [*told, *self._drafters.overdue(now)]

    def _feed(self, told: Sequence[Told | Plan]) -> None:
        while True:
            for action in self.rounds.feed_all(told, time.monotonic()):
                self._carry[type(action)](action)
            self._began.clear()
            self._admitted.clear()
            if not self._more:
                break
            told, self._more = self._more, []
        if counts := self.rounds.counts:
            for what, count in counts.items():
                self._worker.metrics.dropped.labels(
                    kind="rounds", reason=what.replace(" ", "_")
                ).inc(count)
            counts.clear()
        self._news.tell()

    def _say_news(self, news: Sequence[Up]) -> None:
        self._events.call_soon_threadsafe(self._tell_up, news)

    # Events.

    def _heard(
        self, told: Sequence[Down | PrefillRefused], seen: Callable[[], None]
    ) -> Iterable[Told | Plan]:
        seen()
        for each in told:
            if isinstance(each, Admission):
                admit = each.admit
                if self._worker.draining.is_set() and not self._runs(admit.sequence, admit.epoch):
                    why = Refusal(RefusalReason.NO_PAGES, "the verifier is draining")
                    self._refuse(PrefillRefused(admit.sequence, admit.epoch, why))
                else:
                    self._admitted.setdefault((admit.sequence, admit.epoch), each)
                    yield admit
            elif isinstance(each, PrefillRefused):
                self._refuse(each)
            elif isinstance(each, DrafterAt):
                yield from self._drafters.told_of(each)
            else:
                yield each

    def _runs(self, sequence: int, epoch: int) -> bool:
        live = self.rounds.sequence(sequence)
        return live is not None and live.epoch == epoch

    def _refuse(self, gone: PrefillRefused) -> None:
        """Refuses a sequence that was not passed to the loop."""
        self._counted(gone)
        self._news.add(Released(gone.sequence, gone.epoch, 0, GoneReason.NO_PAGES, gone.refusal))

    def _told_of(self, began: Iterable[FinishedPrompt]) -> Iterable[Told]:
        for each in began:
            if isinstance(each.anchor, Refusal):
                yield self._counted(PrefillRefused(each.sequence, each.epoch, each.anchor))
            else:
                self._began[each.sequence] = each
                self._worker.metrics.prefix_cache_hits.inc(each.started.cached_tokens)
                self._worker.metrics.prefix_cache_queries.inc(each.tokens)
                yield Prefilled(each.sequence, each.epoch, each.anchor)

    def _counted(self, gone: PrefillRefused) -> PrefillRefused:
        if gone.refusal is not None:
            self._worker.refused(gone.refusal.reason)
        return gone

    # Actions of the loop.

    def _prefill(self, asked: Prefill) -> None:
        refusal = self._prompts.begin(self._admitted[asked.sequence, asked.epoch])
        if refusal is not None:
            self._more.append(self._counted(PrefillRefused(asked.sequence, asked.epoch, refusal)))

    def _call_back(self, asked: CallBackPrefill) -> None:
        if self._prompts.call_back(asked.sequence, asked.epoch):
            self._more.append(PrefillRefused(asked.sequence, asked.epoch))

    def _report(self, report: Report) -> None:
        if report.number:
            self._news.add(partial(self._passes.report, report, self._passes.taken(report.number)))
            return
        began = self._began.pop(report.rounds[0].sequence)
        logprobs = [began.logprobs] if began.logprobs else []
        held = self._engine.held
        self._news.add(
            PassReport(
                report,
                started=began.started,
                logprobs=logprobs,
                pages_free=held.pages_total - held.pages_held,
            )
        )

    def _drafter_event(self, event: DrafterEvent) -> None:
        self._news.add(event)
        if event.what != "late":
            self._drafters.let_go(event.drafter)

    def free(self, sequence: int, epoch: int) -> None:
        self._engine.release(sequence, epoch)
        self._worker.note_load()


def _fail(bug: Exception) -> Iterable[Told]:
    raise bug
