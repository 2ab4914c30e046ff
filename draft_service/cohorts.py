"""Cohorts that wait for the device, merged: a drafter that is free takes all of them, of any session, in one pass.

It never waits for more to come, and every cohort gets its own answer. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial

from draft_service.arrivals import Arrivals
from draft_service.interface import DraftItem, Engine
from dspark.errors import Overloaded, Unavailable
from dspark.runtime.device_worker import DeviceWorker
from dspark.runtime.telemetry import Metrics
from dspark.types import Block


@dataclass(frozen=True, slots=True)
class Drafted:
    """Blocks in the order of a cohort, and the device time of the pass they came from."""

    blocks: list[Block]
    forward_ns: int


_Asked = tuple[list[DraftItem], asyncio.Future[Drafted], float]  # the clock when its rows were there


class Cohorts:
    """Between the sessions and the device."""

    def __init__(self, engine: Engine, device: DeviceWorker, arrivals: Arrivals, metrics: Metrics) -> None:
        self._engine = engine
        self._device = device
        self._arrivals = arrivals
        self._metrics = metrics
        self._waiting: list[_Asked] = []
        self.wait_s = 0.0  # cohorts waited for a busy device, all together
        self.waits = 0  # cohorts that came to the device
        self._busy = False  # whether a pass is on the device
        self._closed = False

    async def draft(self, items: list[DraftItem], wait_s: float) -> Drafted:
        """Blocks for one cohort, after at most `wait_s` of waiting for its rows."""
        await self._arrivals.ready(items, wait_s)
        if self._closed:
            raise Unavailable("the drafter is shutting down")
        future: asyncio.Future[Drafted] = asyncio.get_running_loop().create_future()
        self._waiting.append((items, future, time.monotonic()))
        if not self._busy:
            self._begin()
        return await future

    async def close(self) -> None:
        """Begins no more passes; whoever waits for one is told so."""
        self._closed = True
        self._tell(self._waiting, Unavailable("the drafter is shutting down"))
        self._waiting = []

    def _begin(self) -> None:
        """A pass over everybody who waits. Straight from here to the device: a task between them would cost time."""
        taken = [asked for asked in self._waiting if not asked[1].cancelled()]
        self._waiting = []
        if not taken:
            return
        merged = [item for items, _, _ in taken for item in items]
        try:
            job = self._device.submit(self._engine.timed_draft, merged, urgent=True)
        except (Overloaded, Unavailable) as error:
            self._tell(taken, error)
            return
        self._busy = True
        now = time.monotonic()
        for _, _, came in taken:
            self.wait_s += now - came
            self._metrics.draft_wait.observe(now - came)
        self.waits += len(taken)
        job.add_done_callback(partial(self._ended, taken, len(merged)))

    def _ended(self, taken: list[_Asked], sequences: int, job: asyncio.Future[tuple[list[Block], int]]) -> None:
        self._busy = False
        if self._waiting and not self._closed:
            self._begin()  # first of all: the device is free
        error = Unavailable("the drafter is shutting down") if job.cancelled() else job.exception()
        if error is not None:
            self._tell(taken, error)
            return
        blocks, forward_ns = job.result()
        at = 0
        for items, future, _ in taken:
            if not future.done():
                future.set_result(Drafted(blocks[at : at + len(items)], forward_ns))
            at += len(items)
        self._metrics.forward_seconds.labels(kind="draft").observe(forward_ns * 1e-9)
        self._metrics.draft_batch_sequences.observe(sequences)

    @staticmethod
    def _tell(asked: list[_Asked], error: BaseException) -> None:
        for _, future, _ in asked:
            if not future.done():
                future.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
