"""Rows between their streams and the device: whoever brought some hears what became of them, whatever happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from draft_service.engine_core import DraftEngineCore
from draft_service.feature_receiver import FeatureReceiver, Outcome
from draft_service.interface import Rows
from dspark.errors import Overloaded
from dspark.runtime.device_worker import DeviceWorker


class Taking:
    """An engine that takes everything."""

    def ingest_many(self, runs: Sequence[Rows]) -> list[Outcome]:
        return [run.start + len(run.rows) for run in runs]


async def test_a_full_device_refuses_rows_and_takes_the_next_ones() -> None:
    device = DeviceWorker("draft", limit=0)
    arrivals = FeatureReceiver(cast("DraftEngineCore", Taking()), device)
    with pytest.raises(Overloaded):
        await arrivals.put([Rows(1, 1, 0, [0] * 100, [0] * 100)])
    device._limit = 8
    assert await arrivals.put([Rows(1, 1, 0, [0] * 100, [0] * 100)]) == [100]
    await arrivals.close()
    device.close()
