"""With a pace a response ends with its term; of a client that has left nothing waits for it."""

import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from coordinator.http.stream import EventStream, left, paced_events, paced_whole, while_connected
from coordinator.reception.pacing import PacketPace, paced
from dspark.errors import RequestCancelled, Unavailable
from dspark.runtime.telemetry import Metrics
from dspark.wire.v1.generate_pb2 import GenerateResponse, GenerateStreamChunk

T = TypeVar("T")

PACE = PacketPace(interval_s=0.1, frame=256, tokens_per_s=10.0)
TERM_TOKENS, LEAVES_S = 1000, 1.0  # a term of 100 s


async def receive() -> dict[str, Any]:
    await asyncio.sleep(LEAVES_S)
    return {"type": "http.disconnect"}


async def test_a_whole_answer_waits_for_the_end_of_its_term_no_longer_than_its_client() -> None:
    clock = asyncio.get_running_loop()
    began, answer = clock.time(), asyncio.sleep(0, b"{}")
    with pytest.raises(RequestCancelled):
        await while_connected(left(receive), paced_whole(answer, PACE, TERM_TOKENS))
    assert clock.time() - began < 2 * LEAVES_S


async def test_nor_does_a_stream() -> None:
    closed = list[float]()

    async def events() -> AsyncGenerator[bytes]:
        try:
            yield b"data: {}\n\n"
            await asyncio.sleep(TERM_TOKENS)
        finally:
            closed.append(asyncio.get_running_loop().time())

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
    assert closed, "before the response is over"
    assert len(sent) > 5
    assert api.processor.metrics.value("slow_readers_cut_total") == 0


async def broken(*texts: T) -> AsyncGenerator[T]:
    """Comes one by one, and ends in an error."""
    for text in texts:
        yield text
        await asyncio.sleep(0.12)
    raise Unavailable("the verifier was lost")


async def test_what_was_said_is_sent_at_the_next_interval_and_before_an_error() -> None:
    said = [GenerateResponse(chunk=GenerateStreamChunk(token_ids=[token])) for token in (1, 2)]
    request: Any = SimpleNamespace(id="r", choices=1, max_tokens=TERM_TOKENS)
    loop, came = asyncio.get_running_loop(), dict[int, float]()
    began = loop.time()

    async def read() -> None:
        async for message in paced(broken(*said), PACE, request):
            came.update(dict.fromkeys(message.chunk.token_ids, round(loop.time() - began, 2)))

    with pytest.raises(Unavailable):
        await read()
    assert came == {1: 0.1, 2: 0.2}


async def test_events_are_sent_before_an_error_too() -> None:
    said, seen = (b"data: 1\n\n", b"data: 2\n\n"), list[bytes]()

    async def read() -> None:
        async for frame in paced_events(broken(*said), PACE, TERM_TOKENS):
            seen.append(frame)

    with pytest.raises(Unavailable):
        await read()
    assert all(each in b"".join(seen) for each in said)
