"""Who watches a request and leaves is let go, also in the turn in which a round comes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.cells.control import ControlService
from coordinator.lanes.watch import Explain
from dspark.wire.v1 import control_pb2
from tests.waiting import until


@pytest.mark.parametrize("turns", range(4))
async def test_a_caller_that_leaves_as_a_round_comes_is_let_go(turns: int) -> None:
    explain, unused = Explain(lambda: None), Any
    cell: Any = SimpleNamespace(
        admission=SimpleNamespace(find=lambda name: name),
        membership=SimpleNamespace(explain=explain),
    )
    service = ControlService(cell, unused, unused, "coordinator/0")  # type: ignore[arg-type]
    rounds: Any = service.Explain(control_pb2.ExplainRequest(request_id="a"), unused)  # type: ignore[arg-type]
    reader = asyncio.ensure_future(anext(rounds))
    await until(lambda: explain.watches)
    await asyncio.sleep(0)
    explain.watches[0].wakeup.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    reader.cancel()
    await asyncio.wait([reader], timeout=2.0)
    assert reader.cancelled()
    assert not explain.watches
