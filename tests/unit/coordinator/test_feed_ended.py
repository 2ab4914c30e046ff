"""Who watches the live page's feed hears of its end, however far behind."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.lanes.watch import Explain
from coordinator.live import feed as feed_module
from coordinator.live.feed import CellFeed
from tests.waiting import until


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
