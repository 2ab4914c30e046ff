"""A coordinator with the real workers over loopback gRPC, all in this process, on the golden pair."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from faults.oracle import plain_greedy
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dspark.wire.v1 import control_pb2, control_pb2_grpc, generate_pb2, generate_pb2_grpc
from tests.services.cell import Cell
from tests.waiting import until

PROMPTS = ((3, 17, 42, 9, 77, 5), (8,), tuple(range(2, 60)), (100, 99, 98), (64, 64, 64, 64))


@dataclass
class Answer:
    tokens: list[int]
    complete: generate_pb2.GenerateComplete
    chunks: int


def stub_of(cell: Cell, process: Any) -> Any:
    return generate_pb2_grpc.GenerationStub(cell.client(process)._channel)


def control_of(cell: Cell, process: Any) -> Any:
    return control_pb2_grpc.ControlStub(cell.client(process)._channel)


def request(prompt: Sequence[int], tokens: int = 24, policy: str = "", **params: Any) -> generate_pb2.GenerateRequest:
    given = {"temperature": 0.0, "max_tokens": tokens, "ignore_eos": True, **params}
    return generate_pb2.GenerateRequest(
        tokenized=generate_pb2.TokenizedInput(input_ids=prompt),
        sampling_params=generate_pb2.SamplingParams(**given),
        speculation=generate_pb2.SpeculationParams(policy=policy),
    )


async def answer(stub: Any, message: generate_pb2.GenerateRequest, timeout: float = 30.0) -> Answer:
    tokens: list[int] = []
    chunks = 0
    async for response in stub.Generate(message, timeout=timeout):
        if response.HasField("complete"):
            return Answer(tokens, response.complete, chunks)
        assert response.chunk.offset == len(tokens)
        tokens += response.chunk.token_ids
        chunks += 1
    raise AssertionError("the stream ended without `complete`")


def with_another_projection(golden: Path, folder: Path) -> Path:
    """The golden drafter with other weights in its context projection."""
    from safetensors.torch import load_file, save_file

    folder.mkdir()
    for file in golden.glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(golden / "model.safetensors")
    name = next(key for key in weights if key.endswith("fc.weight"))
    save_file({**weights, name: weights[name] * 2}, folder / "model.safetensors")
    return folder


async def test_a_drafter_of_another_projection_is_refused_and_status_says_why(
    cell: Cell, golden_drafter: Path, tmp_path: Path
) -> None:
    other = with_another_projection(golden_drafter, tmp_path / "other")
    coordinator = await cell.coordinator([await cell.verifier()], [await cell.drafter(other)])
    status = await control_of(cell, coordinator).GetStatus(control_pb2.GetStatusRequest(), timeout=5)
    refused = next(each for each in status.processes if each.role == control_pb2.ROLE_DRAFT)
    assert refused.state == "connecting"
    assert "both must load the same drafter" in refused.detail
    assert not status.lanes[0].drafters


async def test_status_shows_the_whole_cell(cell: Cell) -> None:
    coordinator = await cell.whole()
    await answer(stub_of(cell, coordinator), request(PROMPTS[0], policy="fixed:2"))
    status = await control_of(cell, coordinator).GetStatus(control_pb2.GetStatusRequest(), timeout=5)
    assert [(each.name, each.state) for each in status.processes] == [
        ("coordinator/0", "serving"),
        ("verify/0", "serving"),
        ("draft/0", "serving"),
    ]
    lane = status.lanes[0]
    assert (lane.verifier, list(lane.drafters), lane.policy) == ("verify/0", ["draft/0"], "adaptive")
    assert lane.rounds > 0
    assert lane.mean_acceptance_length >= 1
    info = await stub_of(cell, coordinator).GetModelInfo(generate_pb2.GetModelInfoRequest(), timeout=5)
    assert (info.vocab_size, info.context_length, info.block_size, info.has_tokenizer) == (128, 512, 7, False)
    assert list(info.stop_token_ids) == [1]


async def test_draining_flips_health_first_and_lets_streams_finish(cell: Cell, golden_target: Path) -> None:
    coordinator = await cell.whole()
    stub = stub_of(cell, coordinator)
    health = health_pb2_grpc.HealthStub(cell.client(coordinator)._channel)
    asked = health_pb2.HealthCheckRequest(service="dspark.wire.v1.Generation")
    assert (await health.Check(asked, timeout=5)).status == health_pb2.HealthCheckResponse.SERVING
    running = asyncio.ensure_future(answer(stub, request(PROMPTS[0], 200)))
    await until(lambda: coordinator.metrics.value("rounds_total") > 3)
    stopping = asyncio.ensure_future(coordinator.stop(20.0))
    async with asyncio.timeout(60):
        while (await health.Check(asked, timeout=5)).status != health_pb2.HealthCheckResponse.NOT_SERVING:
            assert not running.done()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await answer(stub, request((5,)))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert (await running).tokens == plain_greedy(golden_target, PROMPTS[:1], 200)[0]
    await asyncio.wait_for(stopping, 5)


async def test_who_asks_again_while_it_drains_is_refused_in_words(cell: Cell) -> None:
    """Also who asks in the moment in which the last answer ends, and with it the server."""
    coordinator = await cell.whole()
    answers: list[Answer] = []

    async def ask() -> tuple[grpc.StatusCode, str]:
        stub = stub_of(cell, coordinator)
        try:
            while True:
                answers.append(await answer(stub, request(PROMPTS[0], 40)))
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details()

    asking = [asyncio.ensure_future(ask()) for _ in range(4)]
    await until(lambda: len(answers) >= 4)
    await coordinator.stop(20.0)
    refused = {(grpc.StatusCode.UNAVAILABLE, "the coordinator is draining; try another one")}
    assert set(await asyncio.gather(*asking)) == refused
