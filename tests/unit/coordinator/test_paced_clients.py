"""With a pace a response ends with its term; of a client that has left nothing waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from types import SimpleNamespace
from typing import Any

import pytest
from rounds_cell import virtual

from coordinator.http.stream import EventStream, left, paced_events, paced_whole, while_connected
from coordinator.reception.pacing import PacketPace
from dspark.errors import RequestCancelled
from dspark.runtime.telemetry import Metrics

PACE = PacketPace(interval_s=0.1, frame=256, tokens_per_s=10.0)
TERM_TOKENS, LEAVES_S = 1000, 1.0  # a term of 100 s


async def receive() -> dict[str, Any]:
    await asyncio.sleep(LEAVES_S)
    return {"type": "http.disconnect"}


@virtual
async def test_a_whole_answer_waits_for_the_end_of_its_term_no_longer_than_its_client() -> None:
    clock = asyncio.get_running_loop()
    began = clock.time()

    async def answer() -> bytes:
        return b"{}"

    with pytest.raises(RequestCancelled):
        await while_connected(left(receive), paced_whole(answer(), PACE, TERM_TOKENS))
    assert clock.time() - began < 2 * LEAVES_S


@virtual
async def test_nor_does_a_stream() -> None:
    async def events() -> AsyncGenerator[bytes]:
        yield b"data: {}\n\n"

    sent = list[MutableMapping[str, Any]]()

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    api: Any = SimpleNamespace(
        config=SimpleNamespace(max_unread_s=30.0), processor=SimpleNamespace(metrics=Metrics())
    )
    stream = EventStream(api, paced_events(events(), PACE, TERM_TOKENS))
    began = asyncio.get_running_loop().time()
    await stream({"type": "http"}, receive, send)
    assert asyncio.get_running_loop().time() - began < 2 * LEAVES_S
    assert len(sent) > 5
    assert api.processor.metrics.value("slow_readers_cut_total") == 0
