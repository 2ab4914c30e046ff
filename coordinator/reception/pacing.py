"""Answers whose messages tell an eavesdropper nothing: one size, one rhythm, one length, whatever
is in them.

How many tokens a round commits follows what is said, and shows in the sizes and times of encrypted
packets. Under a pace a client hears a message of equal size every interval from the beginning, for
as long as the longest answer it allows would take at an assumed speed. What the answer needs
longer, it gets in as many whole terms.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from coordinator.config import ClientsConfig
from coordinator.reception.output_processor import OutputChunk
from coordinator.reception.response_stream import ResponseStream, write_complete, write_parts
from dspark.errors import ConfigError
from dspark.wire.v1 import generate_pb2

_LEAST_PADDING = 200  # bytes; keeps the length of the length at two bytes
_FIELD = 3  # bytes before the padding: one of its number, two of its length


@dataclass(frozen=True)
class PacketPace:
    """interval_s: between messages. frame: bytes of a message; one that does not fit takes a
    multiple.

    tokens_per_s: the speed answers are made to look like; below the true one, or their ends tell
    it.
    """

    interval_s: float
    frame: int
    tokens_per_s: float

    def ticks(self, max_tokens: int) -> int:
        """Messages of a whole answer, per choice."""
        return max(math.ceil(max_tokens / self.tokens_per_s / self.interval_s), 1)


def read_pace(config: ClientsConfig) -> PacketPace | None:
    """From configuration; None where it is off. Raises ConfigError naming the key."""
    if not config.pace_interval_ms:
        return None
    if config.http is not None and getattr(config, "live_page", False):
        raise ConfigError("pace_interval_ms: the live page keeps no pace; say `live_page: false`")
    return PacketPace(
        config.pace_interval_ms / 1000, config.pace_frame_bytes, config.pace_tokens_per_s
    )


async def beats(pace: PacketPace, max_tokens: int) -> AsyncGenerator[bool]:
    """Every interval, for ever: whether a term ends with it."""
    loop = asyncio.get_running_loop()
    began, term = loop.time(), pace.ticks(max_tokens)
    for ticks in itertools.count(1):
        await asyncio.sleep(max(began + ticks * pace.interval_s - loop.time(), 0.0))
        yield ticks % term == 0


async def paced(
    stream: ResponseStream, pace: PacketPace
) -> AsyncGenerator[generate_pb2.GenerateResponse]:
    """The whole answer, its last message at the end of a term."""
    request = stream.request
    reading: asyncio.Task[list[OutputChunk]] | None = asyncio.create_task(stream.parts())
    waiting: list[generate_pb2.GenerateResponse] = []
    try:
        async for ends in beats(pace, request.max_tokens):
            if reading is not None and reading.done():
                waiting += write_parts(request.id, reading.result(), stream.scored)
                reading = None if stream.done else asyncio.create_task(stream.parts())
            if ends and stream.done and not waiting:
                yield padded(write_complete(stream.output), pace.frame)
                return
            for _ in range(request.choices):
                message = generate_pb2.GenerateResponse(request_id=request.id)
                if waiting:
                    message = waiting.pop(0)
                yield padded(message, pace.frame)
    finally:
        if reading is not None:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await reading


def padded(message: generate_pb2.GenerateResponse, frame: int) -> generate_pb2.GenerateResponse:
    """The message, filled up to the least multiple of `frame` bytes that holds it."""
    size = message.ByteSize() + _FIELD
    whole = frame * math.ceil((size + _LEAST_PADDING) / frame)
    message.padding = bytes(whole - size)
    return message
