"""Who watches a request and leaves is let go, also in the turn in which a round comes; who watches
the live page's feed hears of its end, however far behind."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.cells.control import ControlService
from coordinator.lanes.watch import Explain
from coordinator.live import feed as feed_module
from coordinator.live.feed import CellFeed
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


async def test_a_watcher_that_is_behind_does_not_wait_for_a_feed_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed_module, "FRAME_S", 0.0)
    api: Any = SimpleNamespace(processor=SimpleNamespace(clock=asyncio.get_running_loop()))
    membership: Any = SimpleNamespace(explain=Explain(lambda: None))
    admission: Any = SimpleNamespace(draining=False)
    load: Any = SimpleNamespace(close=lambda: None)
    feed, frames = CellFeed(api, membership, admission, load), [{"type": "cell"}]
    monkeypatch.setattr(feed, "_cell", lambda rounds: frames.pop())  # the second one fails
    told = feed.stream()._events
    assert [b"hello" in await anext(told), b"cell" in await anext(told)] == [True, True]
    await until(lambda: feed._task is not None and feed._task.done())
    async with asyncio.timeout(20):
        assert [frame async for frame in told] == []
