"""Feature rows that come in bulk, on their way into contexts.

Chunks that arrive while the device is busy go in together, in one job; a few rows, with which a sequence can begin to
be drafted for, go before many. Lives on the event loop.
"""

from __future__ import annotations

import asyncio

from draft_service.engine_core import DraftEngineCore
from draft_service.interface import Rows
from dspark.errors import Overloaded
from dspark.runtime.device_worker import DeviceWorker
from dspark.types import Refusal

URGENT_ROWS = 32  # runs of at most this many rows do not wait for longer ones
JOB_ROWS = 2048  # rows of one device job
QUEUE_ROWS = 1 << 18  # rows that may wait for the device

Outcome = int | Refusal  # the watermark afterwards, or why the run was dropped
Chunk = tuple[list[Rows], asyncio.Future[list[Outcome]]]


class FeatureReceiver:
    """Between the streams that bring rows and the device."""

    def __init__(self, engine: DraftEngineCore, device: DeviceWorker) -> None:
        self._engine = engine
        self._device = device
        self._waiting: dict[bool, list[Chunk]] = {True: [], False: []}
        self._rows = 0
        self._work: dict[bool, asyncio.Task[None] | None] = {True: None, False: None}

    def put(self, runs: list[Rows]) -> asyncio.Future[list[Outcome]]:
        """Queues the runs of one chunk; the future tells what became of each. Raises Overloaded."""
        count = sum(len(run.rows) for run in runs)
        if self._rows + count > QUEUE_ROWS:
            raise Overloaded(f"{self._rows} feature rows wait for the device", retry_after_s=0.1)
        future: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        urgent = max(len(run.rows) for run in runs) <= URGENT_ROWS
        self._rows += count
        self._waiting[urgent].append((runs, future))
        if self._work[urgent] is None:
            self._work[urgent] = asyncio.create_task(self._ingest(urgent))
        return future

    async def close(self) -> None:
        """Stops; whoever waits is told so."""
        tasks = [task for task in self._work.values() if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for queue in self._waiting.values():
            for _, future in queue:
                future.cancel()
            queue.clear()

    async def _ingest(self, urgent: bool) -> None:
        queue = self._waiting[urgent]
        try:
            while queue:
                taken, rows = 0, 0
                while taken < len(queue):
                    more = sum(len(run.rows) for run in queue[taken][0])
                    if taken and rows + more > JOB_ROWS:
                        break
                    taken, rows = taken + 1, rows + more
                chunks, queue[:taken] = queue[:taken], []
                self._rows -= rows
                await self._run(chunks, urgent)
        finally:
            self._work[urgent] = None

    async def _run(self, chunks: list[Chunk], urgent: bool) -> None:
        runs = [run for its, _ in chunks for run in its]
        try:
            outcomes = await self._device.run(self._engine.ingest_many, runs, urgent=urgent)
        except Exception as error:  # each chunk's stream decides what to do about it
            for _, future in chunks:
                if not future.done():
                    future.set_exception(error)
            return
        at = 0
        for its, future in chunks:
            if not future.done():
                future.set_result(outcomes[at : at + len(its)])
            at += len(its)
