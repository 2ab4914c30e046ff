"""An HTTP client that takes no event any more is one that has left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

pytest.importorskip("starlette")

from coordinator.http.stream import EventStream, event


async def events() -> AsyncGenerator[bytes]:
    while True:
        yield event({"token": 1})


async def test_a_client_that_takes_nothing_is_cut() -> None:
    said: list[str] = []
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) > 4:
            await asyncio.get_running_loop().create_future()  # its buffers are full

    async def receive() -> Any:
        return await asyncio.get_running_loop().create_future()  # and it is still connected

    gone, cut = lambda: said.append("gone"), lambda: said.append("cut")
    stream = EventStream(events(), gone, unread_s=0.05, on_cut=cut)
    await asyncio.wait_for(stream({"type": "http"}, receive, send), 30)
    assert said == ["cut", "gone"]
    assert sent[-1]["more_body"]  # the answer is not whole, and nobody says that it is
