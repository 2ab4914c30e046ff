"""Cohorts that wait for the device, merged: a drafter that is free takes all of them, of any session, in one pass.

It never waits for more to come, and every cohort gets its own answer. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from draft_service.arrivals import Arrivals
from draft_service.interface import DraftItem, Engine
from dspark.errors import Unavailable
from dspark.runtime.device_worker import DeviceWorker
from dspark.runtime.telemetry import Metrics
from dspark.types import Block


@dataclass(frozen=True, slots=True)
class Drafted:
    """Blocks in the order of a cohort, and the device time of the pass they came from."""

    blocks: list[Block]
    forward_ns: int


class Cohorts:
    """Between the sessions and the device."""

    def __init__(self, engine: Engine, device: DeviceWorker, arrivals: Arrivals, metrics: Metrics) -> None:
        self._engine = engine
        self._device = device
        self._arrivals = arrivals
        self._metrics = metrics
        self._waiting: list[tuple[list[DraftItem], asyncio.Future[Drafted]]] = []
        self._work: asyncio.Task[None] | None = None

    async def draft(self, items: list[DraftItem], wait_s: float) -> Drafted:
        """Blocks for one cohort, after at most `wait_s` of waiting for its rows."""
        await self._arrivals.ready(items, wait_s)
        future: asyncio.Future[Drafted] = asyncio.get_running_loop().create_future()
        self._waiting.append((items, future))
        if self._work is None:
            self._work = asyncio.create_task(self._run())
        return await future

    async def close(self) -> None:
        """Stops; whoever waits is told so."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(Unavailable("the drafter is shutting down"))
        self._waiting.clear()

    async def _run(self) -> None:
        try:
            while self._waiting:
                taken, self._waiting = self._waiting, []
                taken = [(items, future) for items, future in taken if not future.cancelled()]
                if taken:
                    await self._pass(taken)
        finally:
            self._work = None

    async def _pass(self, taken: list[tuple[list[DraftItem], asyncio.Future[Drafted]]]) -> None:
        merged = [item for items, _ in taken for item in items]
        try:
            blocks, forward_ns = await self._device.run(self._engine.timed_draft, merged, urgent=True)
        except BaseException as error:
            for _, future in taken:
                if not future.done():
                    future.set_exception(
                        error if isinstance(error, Exception) else Unavailable("the drafter is shutting down")
                    )
            if not isinstance(error, Exception):
                raise
            return
        self._metrics.forward_seconds.labels(kind="draft").observe(forward_ns * 1e-9)
        self._metrics.draft_batch_sequences.observe(len(merged))
        at = 0
        for items, future in taken:
            if not future.done():
                future.set_result(Drafted(blocks[at : at + len(items)], forward_ns))
            at += len(items)
