"""A cell of real processes whose workers sleep instead of computing, and loads on it.

Both exist so that thousands of requests and hundreds of streams fit on a small machine: what is
measured is admission, streams and their bounds, not a model.
"""

import itertools
from collections.abc import Mapping
from typing import Any

import grpc

from dspark.client.request import Options, write_request
from dspark.loadgen import prometheus, run
from dspark.loadgen.grpc_endpoint import GrpcEndpoint
from dspark.loadgen.prompts import Question
from dspark.wire.v1 import generate_pb2
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


def prompt(seed: int) -> tuple[int, ...]:
    return tuple((seed * 31 + at) % 1000 + 1 for at in range(PROMPT))


def options(tokens: int) -> Options:
    return Options(max_tokens=tokens, ignore_eos=True, temperature=0.0)


def message(tokens: int, *, seed: int = 0) -> generate_pb2.GenerateRequest:
    return write_request(prompt(seed), options(tokens))


async def loaded(cell: FaultCell, tokens: int, **load: Any) -> run.Outcome:
    """Answers of so many tokens. load: what `LoadPlan` takes."""
    server = GrpcEndpoint(cell.endpoint, options(tokens))
    try:
        questions = map(Question, map(prompt, itertools.count()))
        return await run.run(server, questions, run.LoadPlan(**load))
    finally:
        await server.close()
