"""A cell of real processes whose workers sleep instead of computing, and an asyncio client without
ceremony for floods.

Both exist so that thousands of requests and hundreds of streams fit on a small machine: what is
measured is admission, streams and their bounds, not a model.
"""

import asyncio
import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from dspark.loadgen import prometheus
from dspark.wire.v1 import generate_pb2, generate_pb2_grpc
from tests.faults.pair import FLAT
from tests.faults.processes import FaultCell

PROMPT = 16  # tokens of each request


def synthetic_cell(*, sequences: int, coordinator: Mapping[str, Any] | None = None) -> FaultCell:
    """One verifier and one drafter with room for so many sequences."""
    room = {
        "engine": "synthetic",
        "synthetic": FLAT,
        "max_sequences": sequences,
        "measure_cost": True,
    }
    return FaultCell(
        coordinator=coordinator,
        verify={**room, "kv_tokens": sequences * 32768},
        draft={**room, "context_tokens": sequences * 32768},
    )


def counter(cell: FaultCell, name: str) -> int:
    """A counter of the coordinator, summed over its labels."""
    with cell.client() as client:
        port = next(
            each.metrics_port for each in client.status().processes if each.name == "coordinator/0"
        )
    samples = prometheus.fetch(f"http://127.0.0.1:{port}/metrics")
    return int(prometheus.total(samples, name))


def small_channel(endpoint: str, number: int = 0) -> grpc.aio.Channel:
    """Its streams take little ahead of their reader, so that a stall is felt soon."""
    options = [
        ("grpc.http2.lookahead_bytes", 1024),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.channel_number", number),  # channels of equal options would share a connection
    ]
    return grpc.aio.insecure_channel(endpoint, options=options)


@dataclass
class Told:
    began: float
    code: grpc.StatusCode = grpc.StatusCode.OK
    details: str = ""
    times: list[float] = field(default_factory=list)  # of chunks
    tokens: int = 0
    ended: float = 0.0

    @property
    def first_s(self) -> float:
        return (self.times or [self.ended])[0] - self.began

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in itertools.pairwise(self.times)]

    @property
    def took_s(self) -> float:
        return self.ended - self.began


def message(tokens: int, *, seed: int = 0) -> generate_pb2.GenerateRequest:
    return generate_pb2.GenerateRequest(
        tokenized=generate_pb2.TokenizedInput(
            input_ids=[(seed * 31 + at) % 1000 + 1 for at in range(PROMPT)]
        ),
        sampling_params=generate_pb2.SamplingParams(
            max_tokens=tokens, ignore_eos=True, temperature=0.0
        ),
    )


async def ask(channel: grpc.aio.Channel, request: generate_pb2.GenerateRequest) -> Told:
    """One request to its end, whatever that is."""
    told = Told(time.monotonic())
    stub = generate_pb2_grpc.GenerationStub(channel)
    try:
        async for response in stub.Generate(request, timeout=600.0):
            if response.HasField("chunk"):
                told.times.append(time.monotonic())
                told.tokens += len(response.chunk.token_ids)
    except grpc.aio.AioRpcError as error:
        told.code, told.details = error.code(), error.details() or ""
    told.ended = time.monotonic()
    return told


async def closed_loop(
    channel: grpc.aio.Channel, streams: int, seconds: float, tokens: int
) -> float:
    """Answers a second with so many clients that ask again as soon as they have an answer."""
    ends, answered = time.monotonic() + seconds, 0

    async def one(number: int) -> None:
        nonlocal answered
        while time.monotonic() < ends:
            told = await ask(channel, message(tokens, seed=number))
            answered += told.code is grpc.StatusCode.OK and told.ended <= ends

    await asyncio.gather(*(one(number) for number in range(streams)))
    return answered / seconds
