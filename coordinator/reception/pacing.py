"""Paced answers: messages of equal size at a fixed interval, so that encrypted packets reveal
nothing of their content.

How many tokens a round commits depends on the text, and shows in the sizes and times of packets.
Under a pace a client is sent a message of equal size every interval from the beginning, for one
term: the time that `max_tokens` would take at an assumed speed. An answer that takes longer ends
after further whole terms.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import TypeVar

from coordinator.config import ClientsConfig
from coordinator.requests.request import Request
from dspark.errors import ConfigError
from dspark.wire.v1 import generate_pb2

T = TypeVar("T")

_LEAST_PADDING = 200  # bytes; from 128 on a length is encoded in two bytes
_FIELD = 3  # bytes before the padding: one of its number, two of its length


@dataclass(frozen=True)
class PacketPace:
    """Interval, size and apparent speed of paced messages. interval_s: seconds between messages.
    frame: bytes of a message; a larger one is padded to a multiple.

    tokens_per_s: the speed that answers appear to have. It must be below the true one: otherwise
    the end of an answer reveals its length.
    """

    interval_s: float
    frame: int
    tokens_per_s: float

    def ticks(self, max_tokens: int) -> int:
        """Intervals of one term: messages per choice for an answer of `max_tokens` tokens."""
        return max(math.ceil(max_tokens / self.tokens_per_s / self.interval_s), 1)


def read_pace(config: ClientsConfig) -> PacketPace | None:
    """The pace that `config` sets; None when it is off. Raises ConfigError naming the key."""
    if not config.pace_interval_ms:
        return None
    if config.http is not None and getattr(config, "live_page", False):
        raise ConfigError("pace_interval_ms: the live page keeps no pace; say `live_page: false`")
    return PacketPace(
        config.pace_interval_ms / 1000, config.pace_frame_bytes, config.pace_tokens_per_s
    )


async def at_pace(
    items: AsyncGenerator[T],
    pace: PacketPace,
    max_tokens: int,
    *,
    count: Callable[[list[T]], int],
    may_end: Callable[[T], bool],
) -> AsyncGenerator[list[T]]:
    """Yields at every interval the first `count` of the `items` that wait, the last of all alone at
    the end of a term. Raises their error behind what came before it.

    may_end: whether an item may be the last, so that it waits for another one or the end.
    """
    loop = asyncio.get_running_loop()
    began, term, waiting = loop.time(), pace.ticks(max_tokens), list[T]()

    async def read() -> None:
        async with contextlib.aclosing(items):
            async for item in items:
                waiting.append(item)

    reading = asyncio.create_task(read())
    try:
        for ticks in itertools.count(1):
            await asyncio.sleep(max(began + ticks * pace.interval_s - loop.time(), 0.0))
            failed = reading.exception() if reading.done() else None
            if failed is not None and not waiting:
                raise failed
            over = reading.done() and failed is None
            if over and ticks % term == 0 and len(waiting) <= 1:
                yield waiting
                return
            held = failed is None and waiting and may_end(waiting[-1])
            ready = waiting[:-1] if held else waiting
            taken = ready[: count(ready)]
            del waiting[: len(taken)]
            yield taken
    finally:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await reading


async def paced(
    messages: AsyncGenerator[generate_pb2.GenerateResponse], pace: PacketPace, request: Request
) -> AsyncGenerator[generate_pb2.GenerateResponse]:
    """Yields the padded messages of a request: one for each answer at every interval, then the
    last."""
    at_once = at_pace(
        messages, pace, request.max_tokens, count=lambda _: request.choices, may_end=_ends
    )
    async with contextlib.aclosing(at_once):
        async for taken in at_once:
            if not (taken and _ends(taken[-1])):
                empty = range(len(taken), request.choices)
                taken += [generate_pb2.GenerateResponse(request_id=request.id) for _ in empty]
            for message in taken:
                yield padded(message, pace.frame)


def _ends(message: generate_pb2.GenerateResponse) -> bool:
    return message.HasField("complete")


def padded(message: generate_pb2.GenerateResponse, frame: int) -> generate_pb2.GenerateResponse:
    """Pads the message, in place, to the least multiple of `frame` bytes that holds it."""
    size = message.ByteSize() + _FIELD
    whole = frame * math.ceil((size + _LEAST_PADDING) / frame)
    message.padding = bytes(whole - size)
    return message
