"""Rows between their streams and the device: whoever brought some hears what became of them,
whatever happens."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from draft_service.engine_core import DraftEngineCore
from draft_service.feature_receiver import QUEUE_ROWS, FeatureReceiver, Outcome
from draft_service.interface import Rows
from dspark.runtime.device_worker import DeviceWorker
from dspark.types import RefusalReason


class Taking:
    """An engine that takes everything below a position."""

    job_rows = 2048

    def ingest_many(self, runs: Sequence[Rows]) -> list[Outcome]:
        if any(run.start > 1000 for run in runs):
            raise RuntimeError("a bug")
        return [run.start + len(run.rows) for run in runs]


def rows(start: int = 0, count: int = 100) -> Rows:
    return Rows(1, 1, start, [0] * count, [0] * count)


async def became(arrivals: FeatureReceiver, run: Rows) -> Outcome:
    told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    arrivals.put(run, told.set_result)
    return await told


async def test_what_cannot_be_taken_is_refused_and_the_next_rows_are_taken() -> None:
    device = DeviceWorker("draft", limit=0)
    arrivals = FeatureReceiver(cast("DraftEngineCore", Taking()), device)
    for run, why in (
        (rows(), RefusalReason.NO_PAGES),  # the device is full
        (rows(count=QUEUE_ROWS + 1), RefusalReason.NO_PAGES),
        (rows(start=2000), RefusalReason.INTERNAL),
    ):
        outcome = await became(arrivals, run)
        assert outcome.reason is why
        device._limit = 8
    assert await asyncio.gather(became(arrivals, rows()), became(arrivals, rows(100))) == [100, 200]
    await arrivals.close()
    device.close()


async def test_who_cannot_be_told_leaves_the_others(caplog: pytest.LogCaptureFixture) -> None:
    device = DeviceWorker("draft")
    arrivals = FeatureReceiver(cast("DraftEngineCore", Taking()), device)

    def gone(outcome: Outcome) -> None:
        raise RuntimeError("the stream is over")

    arrivals.put(rows(), gone)
    assert await asyncio.wait_for(
        asyncio.gather(became(arrivals, rows()), became(arrivals, rows(100))), 10
    ) == [
        100,
        200,
    ]
    assert "the stream is over" in caplog.text
    await arrivals.close()
    device.close()
