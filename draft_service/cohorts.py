"""Cohorts that wait for the device, merged: a drafter that is free takes all of them, of any session, in one pass.

It never waits for more to come, and every cohort gets its own answer. Feature rows that come with a cohort are taken in
by the same job. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import structlog

from draft_service.arrivals import Arrivals
from draft_service.interface import DraftItem, Engine, Rows
from dspark.errors import Overloaded, Unavailable
from dspark.runtime.device_worker import DeviceWorker
from dspark.runtime.telemetry import Metrics
from dspark.types import Block

log = structlog.get_logger("dspark.draft")


@dataclass(frozen=True, slots=True)
class Drafted:
    """Blocks in the order of a cohort, the device time of their pass, how long the cohort waited for it."""

    blocks: list[Block]
    forward_ns: int
    wait_ns: int


class _Asked(NamedTuple):
    items: Sequence[DraftItem]
    rows: Sequence[Rows]
    future: asyncio.Future[Drafted]
    came: float  # the clock when its rows were there


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
        return await self.ask(items)

    def ask(self, items: Sequence[DraftItem], rows: Sequence[Rows] = ()) -> asyncio.Future[Drafted]:
        """Blocks for one cohort, once these rows of it are taken in. Raises Unavailable."""
        if self._closed:
            raise Unavailable("the drafter is shutting down")
        future: asyncio.Future[Drafted] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Asked(items, rows, future, time.monotonic()))
        if not self._busy:
            self._begin()
        return future

    async def close(self) -> None:
        """Begins no more passes; whoever waits for one is told so."""
        self._closed = True
        self._tell(self._waiting, Unavailable("the drafter is shutting down"))
        self._waiting = []

    def _begin(self) -> None:
        """A pass over everybody who waits. Straight from here to the device: a task between them would cost time."""
        taken = [asked for asked in self._waiting if not asked.future.cancelled()]
        self._waiting = []
        if not taken:
            return
        merged = [item for asked in taken for item in asked.items]
        rows = [run for asked in taken for run in asked.rows]
        try:
            job = self._device.submit(self.timed_draft, rows, merged, urgent=True)
        except (Overloaded, Unavailable) as error:
            self._tell(taken, error)
            return
        self._busy = True
        now = time.monotonic()
        for asked in taken:
            self.wait_s += now - asked.came
            self._metrics.draft_wait.observe(now - asked.came)
        self.waits += len(taken)
        job.add_done_callback(partial(self._ended, taken, now))

    def timed_draft(self, rows: Sequence[Rows], items: Sequence[DraftItem]) -> tuple[list[Block], int]:
        """On the device. Rows that cannot be taken in leave blocks empty, by the watermarks that they leave behind."""
        began = time.perf_counter_ns()
        if rows:
            try:
                self._engine.ingest_many(rows)
            except Exception as error:  # of one cohort, perhaps, and the others need none of it
                log.error("rows.failed", exc_info=error)
        blocks, _ = self._engine.timed_draft(items)
        return blocks, time.perf_counter_ns() - began

    def _ended(self, taken: list[_Asked], began: float, job: asyncio.Future[tuple[list[Block], int]]) -> None:
        self._busy = False
        if self._waiting and not self._closed:
            self._begin()  # first of all: the device is free
        error = Unavailable("the drafter is shutting down") if job.cancelled() else job.exception()
        if error is not None:
            self._tell(taken, error)
            return
        blocks, forward_ns = job.result()
        at = 0
        for asked in taken:
            count = len(asked.items)
            if not asked.future.done():
                wait_ns = int((began - asked.came) * 1e9)
                asked.future.set_result(Drafted(blocks[at : at + count], forward_ns, wait_ns))
            at += count
        self._metrics.forward_seconds.labels(kind="draft").observe(forward_ns * 1e-9)
        self._metrics.draft_batch_sequences.observe(at)

    @staticmethod
    def _tell(asked: list[_Asked], error: BaseException) -> None:
        for each in asked:
            if not each.future.done():
                each.future.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
