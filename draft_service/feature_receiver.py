"""The queue of feature rows between the bulk streams and the device.

Chunks that arrive while the device is busy are ingested together, in one job; rounds have priority
over them. Used on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from draft_service.engine_core import DraftEngineCore
from draft_service.interface import Rows
from dspark.errors import Overloaded, Unavailable
from dspark.runtime.device_worker import DeviceWorker
from dspark.types import Refusal, RefusalReason

log = structlog.get_logger("dspark.feature_sink")

QUEUE_ROWS = 1 << 18  # rows that may wait for the device

Outcome = int | Refusal  # the watermark afterwards, or why the run was dropped
Settle = Callable[[Outcome], None]


class FeatureReceiver:
    """Queues the rows that streams receive, and ingests them on the device thread."""

    def __init__(self, engine: DraftEngineCore, device: DeviceWorker) -> None:
        self._engine = engine
        self._device = device
        self._waiting: list[tuple[Rows, Settle]] = []
        self._rows = 0
        self._work: asyncio.Task[None] | None = None

    def put(self, run: Rows, settle: Settle) -> None:
        """Queues a run of rows. settle: called once, with its outcome."""
        count = len(run.rows)
        if self._rows + count > QUEUE_ROWS:
            settle(
                Refusal(RefusalReason.NO_PAGES, f"{self._rows} feature rows wait for the device")
            )
            return
        self._rows += count
        self._waiting.append((run, settle))
        if self._work is None:
            self._work = asyncio.create_task(self._ingest())

    async def close(self) -> None:
        """Stops ingesting. All streams have ended, so outcomes are not reported."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def _ingest(self) -> None:
        try:
            while self._waiting:
                taken, rows = 1, len(self._waiting[0][0].rows)
                while (
                    taken < len(self._waiting)
                    and rows + (more := len(self._waiting[taken][0].rows)) <= self._engine.job_rows
                ):
                    taken, rows = taken + 1, rows + more
                chunks, self._waiting[:taken] = self._waiting[:taken], []
                self._rows -= rows
                outcomes = await self._outcomes([run for run, _ in chunks])
                soon = asyncio.get_running_loop().call_soon
                for (_, settle), outcome in zip(chunks, outcomes, strict=True):
                    soon(settle, outcome)  # an error in one leaves the others
        finally:
            self._work = None

    async def _outcomes(self, runs: Sequence[Rows]) -> list[Outcome]:
        try:
            return await self._device.run(self._engine.ingest_many, runs)
        except (Overloaded, Unavailable) as error:
            refusal = Refusal(RefusalReason.NO_PAGES, str(error))
        except Exception as error:
            log.error("feature_sink.failed", exc_info=error)
            refusal = Refusal(RefusalReason.INTERNAL, "a bug; see the drafter's log")
        return [refusal] * len(runs)
