"""Answers under a pace: messages of one size, and as many for an answer that came fast as for one that came slowly."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from coordinator import process as coordinator_process
from coordinator.config import CoordinatorConfig
from coordinator.http.stream import framed
from coordinator.process import CoordinatorProcess, check
from coordinator.reception.pacing import padded, read_pace
from draft_service import process as draft_process
from draft_service.config import DraftConfig
from dspark.client import AsyncClient
from dspark.client.request import Sampling, write_request
from dspark.errors import ConfigError
from dspark.runtime.channel import open_channel
from dspark.wire.v1 import generate_pb2, generate_pb2_grpc
from verify_service import process as verify_process
from verify_service.config import VerifyConfig

pytestmark = pytest.mark.services
FRAME = 1024


@asynccontextmanager
async def _cell(pair: Path, **more: object) -> AsyncIterator[CoordinatorProcess]:
    engine = {"engine": "synthetic", "synthetic": str(pair), "metrics_port": None}
    verifier = await verify_process.start(VerifyConfig(**engine))
    drafter = await draft_process.start(DraftConfig(**engine))
    coordinator = await coordinator_process.start(
        CoordinatorConfig(
            verify=(verifier.endpoint,),
            draft=(drafter.endpoint,),
            metrics_port=None,
            pace_interval_ms=80.0,
            pace_frame_bytes=FRAME,
            pace_tokens_per_s=10.0,
            **more,
        )
    )
    yield coordinator
    for process in (coordinator, drafter, verifier):
        await process.stop(0.1)


def _pair(path: Path, accept: float) -> Path:
    document = {
        "verify": {"tokens": [1, 64], "ms": [0.5, 1.0]},
        "draft": {"sequences": [1, 16], "ms": [0.1, 0.2]},
        "domains": {"any": {"accept": [accept] * 4, "concentration": 1.0}},
    }
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


async def _sizes(endpoint: str, tokens: int, **options: object) -> tuple[list[int], int]:
    """Bytes of every message of an answer, and its tokens."""
    said = 0
    async with open_channel(endpoint) as channel:
        stub = generate_pb2_grpc.GenerationStub(channel)
        request = write_request([5, 6, 7], Sampling(max_tokens=tokens, **options))
        sizes = []
        async for message in stub.Generate(request, timeout=60):
            sizes.append(message.ByteSize())
            said += len(message.chunk.token_ids)
    return sizes, said


async def test_sizes_and_their_number_do_not_depend_on_what_was_accepted(tmp_path: Path) -> None:
    seen = []
    for accept in (0.95, 0.05):
        async with _cell(_pair(tmp_path / "pair.yaml", accept)) as cell:
            sizes, said = await _sizes(cell.endpoint, 40, seed=1)
            assert said == 40
            seen.append(sizes)
    assert seen[0] == seen[1] == [FRAME] * 50


async def test_answers_that_end_early_look_like_long_ones(tmp_path: Path) -> None:
    async with _cell(_pair(tmp_path / "pair.yaml", 0.5)) as cell:
        endpoint = cell.endpoint
        whole, _ = await _sizes(endpoint, 24, seed=1)
        async with AsyncClient(endpoint) as client:
            answer = await client.complete([5, 6, 7], max_tokens=24, seed=1, timeout=60)
        short, said = await _sizes(endpoint, 24, seed=1, stop_token_ids=[answer.token_ids[2]])
        assert said < 24
        assert short == whole
        several, said = await _sizes(endpoint, 8, n=3, seed=1)
        assert said == 24
        assert set(several) == {FRAME}


@pytest.mark.parametrize("stream", [True, False])
async def test_http_keeps_the_same_pace(tmp_path: Path, stream: bool) -> None:
    seen = []
    body = {"prompt": [5, 6, 7], "max_tokens": 24, "stream": stream, "seed": 1, "return_token_ids": True}
    for accept in (0.95, 0.05):
        pair = _pair(tmp_path / "pair.yaml", accept)
        async with (
            _cell(pair, http="127.0.0.1:0", live_page=False) as cell,
            httpx.AsyncClient(base_url=str(cell.http_url), timeout=60) as client,
        ):
            began = time.monotonic()
            reply = await client.post("/v1/completions", json=body)
            assert time.monotonic() - began >= 24 / 10
        assert reply.status_code == 200, reply.text
        assert ("[DONE]" in reply.text[-FRAME:]) is stream
        seen.append(len(reply.content))
    assert seen == [30 * FRAME] * 2


@pytest.mark.parametrize("content", [0, 1, 300, 820, 1024, 5000, 20_000])
def test_padding_fills_whole_frames(content: int) -> None:
    message = generate_pb2.GenerateResponse(chunk=generate_pb2.GenerateStreamChunk(text="x" * content))
    assert padded(message, FRAME).ByteSize() % FRAME == 0
    event = b"data: " + b"x" * content + b"\n\n"
    filled = framed(event, FRAME)
    assert filled.startswith(event)
    assert len(filled) % FRAME == 0
    assert len(filled) - len(event) <= FRAME + 4


def test_settings_that_would_not_hide_are_refused() -> None:
    for change in ({"pace_frame_bytes": 100}, {"pace_interval_ms": -1.0}, {"pace_tokens_per_s": 0.0}):
        with pytest.raises(ConfigError, match=next(iter(change))):
            check(CoordinatorConfig(**{"pace_interval_ms": 50.0, **change}))
    with pytest.raises(ConfigError, match="live_page"):
        read_pace(CoordinatorConfig(pace_interval_ms=50.0, http="127.0.0.1:0", live_page=True))
    assert read_pace(CoordinatorConfig()) is None
