"""Feature rows that come in bulk, on their way into contexts.

Chunks that arrive while the device is busy go in together, in one job; rounds go before them. Lives on the event loop.
"""

from __future__ import annotations

import asyncio

from draft_service.engine_core import DraftEngineCore
from draft_service.interface import Rows
from dspark.errors import Overloaded
from dspark.runtime.device_worker import DeviceWorker
from dspark.types import Refusal

JOB_ROWS = 2048  # rows of one device job
QUEUE_ROWS = 1 << 18  # rows that may wait for the device

Outcome = int | Refusal  # the watermark afterwards, or why the run was dropped
Chunk = tuple[list[Rows], asyncio.Future[list[Outcome]]]


class FeatureReceiver:
    """Between the streams that bring rows and the device."""

    def __init__(self, engine: DraftEngineCore, device: DeviceWorker) -> None:
        self._engine = engine
        self._device = device
        self._waiting: list[Chunk] = []
        self._rows = 0
        self._work: asyncio.Task[None] | None = None

    def put(self, runs: list[Rows]) -> asyncio.Future[list[Outcome]]:
        """Queues the runs of one chunk; the future tells what became of each. Raises Overloaded."""
        count = _count(runs)
        if self._rows + count > QUEUE_ROWS:
            raise Overloaded(f"{self._rows} feature rows wait for the device", retry_after_s=0.1)
        future: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        self._rows += count
        self._waiting.append((runs, future))
        if self._work is None:
            self._work = asyncio.create_task(self._ingest())
        return future

    async def close(self) -> None:
        """Stops; whoever waits is told so."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        for _, future in self._waiting:
            future.cancel()
        self._waiting.clear()

    async def _ingest(self) -> None:
        try:
            while self._waiting:
                taken, rows = 1, _count(self._waiting[0][0])
                while taken < len(self._waiting) and rows + (more := _count(self._waiting[taken][0])) <= JOB_ROWS:
                    taken, rows = taken + 1, rows + more
                chunks, self._waiting[:taken] = self._waiting[:taken], []
                self._rows -= rows
                await self._run(chunks)
        finally:
            self._work = None

    async def _run(self, chunks: list[Chunk]) -> None:
        runs = [run for its, _ in chunks for run in its]
        try:
            outcomes = await self._device.run(self._engine.ingest_many, runs)
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


def _count(runs: list[Rows]) -> int:
    return sum(len(run.rows) for run in runs)
