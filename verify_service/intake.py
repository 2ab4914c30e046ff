"""Prompts on the event loop's side: they wait here for their chunks, whichever pass those ran in.

While rounds are running a chunk rides in each of them; once no round has come for a moment, prompts have the device
to themselves. So a long prompt neither stops rounds nor waits for them. One intake serves all sessions of a process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from dspark.errors import Unavailable
from dspark.runtime.device_worker import DeviceWorker
from dspark.runtime.telemetry import Metrics
from dspark.types import Refusal, RefusalReason
from verify_service.interface import Engine, FeatureRun, Prefill, Progress

log = structlog.get_logger("dspark.verify")

IDLE_S = 0.02  # without a round for so long nobody decodes
LIVELY_S = 0.5  # after the last round somebody may decode again any moment: chunks stay short


@dataclass(slots=True)
class _Waiting:
    """Who waits for a prompt."""

    future: asyncio.Future[Refusal | None]
    take_rows: Callable[[FeatureRun], None]
    lined_up: bool = False  # whether the device knows of it


class Intake:
    """Runs prompts to their end."""

    def __init__(self, engine: Engine, device: DeviceWorker, metrics: Metrics) -> None:
        self._engine, self._device, self._metrics = engine, device, metrics
        self._waiting: dict[Prefill, _Waiting] = {}
        self._pump: asyncio.Task[None] | None = None
        self._rounds = 0  # cohorts on the device now
        self._last_round = 0.0  # when one ended, in monotonic seconds

    async def run(self, prefill: Prefill, take_rows: Callable[[FeatureRun], None]) -> Refusal | None:
        """Until all of the prompt has run; None, or why it could not. Rows are handed over as they are made."""
        waiting = self._waiting[prefill] = _Waiting(asyncio.get_running_loop().create_future(), take_rows)
        try:
            await self._device.run(self._engine.line_up, prefill, urgent=True)
            waiting.lined_up = True
            if self._pump is None or self._pump.done():
                self._pump = asyncio.create_task(self._work())
            return await waiting.future
        finally:
            self._waiting.pop(prefill, None)

    def round_begins(self) -> None:
        """A cohort goes to the device."""
        self._rounds += 1

    def round_ends(self) -> None:
        self._rounds -= 1
        self._last_round = time.monotonic()

    def collect(self) -> None:
        """What chunks brought that rode in rounds, to those who wait for it."""
        while (news := self._engine.take_news()) is not None:
            self._deliver(news)

    def _deliver(self, progress: Progress) -> None:
        waiting = self._waiting.get(progress.prefill)
        if waiting is None or waiting.future.done():
            return  # its session has ended
        if progress.rows is not None:
            waiting.take_rows(progress.rows)
        if progress.done or progress.problem is not None:
            waiting.future.set_result(progress.problem)

    @property
    def _pending(self) -> list[_Waiting]:
        return [each for each in self._waiting.values() if each.lined_up and not each.future.done()]

    async def _work(self) -> None:
        while self._pending:
            self.collect()  # where a round ended without a verdict, nobody else does
            quiet_s = time.monotonic() - self._last_round
            if self._rounds or quiet_s < IDLE_S:
                await asyncio.sleep(max(IDLE_S - quiet_s, IDLE_S / 4))
                continue
            began, pending = time.monotonic(), self._pending
            try:
                short = quiet_s < LIVELY_S
                progress = await self._device.run(lambda short=short: self._engine.prefill_next(short=short))
            except Unavailable:
                self._fail(pending)
                return
            except Exception as error:
                log.error("prefill.failed", exc_info=error)
                continue
            if progress is None:  # a round took the last of the line with it; its news are on their way
                await asyncio.sleep(IDLE_S / 4)
                continue
            self._metrics.forward_seconds.labels(kind="prefill").observe(time.monotonic() - began)
            self.collect()
            self._deliver(progress)

    def _fail(self, pending: Sequence[_Waiting]) -> None:
        for each in pending:
            if not each.future.done():
                each.future.set_result(Refusal(RefusalReason.INTERNAL, "the prompt could not be run"))
