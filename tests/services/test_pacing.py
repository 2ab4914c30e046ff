"""Answers under a pace: as many messages, of one size, for fast answers as for slow ones."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from coordinator.cells.local_cell import LocalCell
from coordinator.config import CoordinatorConfig
from coordinator.frontend.front_end import ClientsProcess
from coordinator.http.stream import framed
from coordinator.process import check
from coordinator.reception.pacing import padded, read_pace
from dspark.client import AsyncClient
from dspark.client.request import write_request
from dspark.errors import ConfigError
from dspark.runtime.channel import open_channel
from dspark.wire.v1 import generate_pb2, generate_pb2_grpc
from tests.services.cell import Cell
from tests.synthetic_file import synthetic_file

FRAME = 1024


@asynccontextmanager
async def _cell(pair: str, **more: object) -> AsyncIterator[ClientsProcess[LocalCell]]:
    pace = {"pace_interval_ms": 40.0, "pace_frame_bytes": FRAME, "pace_tokens_per_s": 20.0}
    async with Cell(pair=pair) as cell:
        yield await cell.whole(**pace, **more)
        await cell.freed()


def _pair(folder: Path, accept: float) -> str:
    return synthetic_file(folder, [accept] * 4, verify_ms=0.5, concentration=1.0)


async def _sizes(endpoint: str, tokens: int, **options: object) -> tuple[list[int], int]:
    """Bytes of every message of an answer, and its tokens."""
    said = 0
    async with open_channel(endpoint) as channel:
        stub = generate_pb2_grpc.GenerationStub(channel)
        request = write_request([5, 6, 7], {"max_tokens": tokens, **options})
        sizes = []
        async for message in stub.Generate(request, timeout=60):
            sizes.append(message.ByteSize())
            said += len(message.chunk.token_ids)
    return sizes, said


async def test_sizes_and_their_number_do_not_depend_on_what_was_accepted(tmp_path: Path) -> None:
    seen = []
    for accept in (0.95, 0.05):
        async with _cell(_pair(tmp_path, accept)) as cell:
            sizes, said = await _sizes(cell.endpoint, 40, seed=1)
            assert said == 40
            seen.append(sizes)
    assert seen[0] == seen[1] == [FRAME] * 50


async def test_answers_that_end_early_look_like_long_ones(tmp_path: Path) -> None:
    async with _cell(_pair(tmp_path, 0.5)) as cell:
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
    body = {
        "prompt": [5, 6, 7],
        "max_tokens": 24,
        "stream": stream,
        "seed": 1,
        "return_token_ids": True,
    }
    for accept in (0.95, 0.05):
        pair = _pair(tmp_path, accept)
        async with (
            _cell(pair, http="127.0.0.1:0", live_page=False) as cell,
            httpx.AsyncClient(base_url=str(cell.http_url), timeout=60) as client,
        ):
            began = time.monotonic()
            reply = await client.post("/v1/completions", json=body)
            assert time.monotonic() - began >= 24 / 20
        assert reply.status_code == 200, reply.text
        assert ("[DONE]" in reply.text[-FRAME:]) is stream
        seen.append(len(reply.content))
    assert seen == [30 * FRAME] * 2


@pytest.mark.parametrize("content", [0, 1, 300, 820, 1024, 5000, 20_000])
def test_padding_fills_whole_frames(content: int) -> None:
    message = generate_pb2.GenerateResponse(
        chunk=generate_pb2.GenerateStreamChunk(text="x" * content)
    )
    assert padded(message, FRAME).ByteSize() % FRAME == 0
    event = b"data: " + b"x" * content + b"\n\n"
    filled = framed(event, FRAME)
    assert filled.startswith(event)
    assert len(filled) % FRAME == 0
    assert len(filled) - len(event) <= FRAME + 4


def test_settings_that_would_not_hide_are_refused() -> None:
    for change in (
        {"pace_frame_bytes": 100},
        {"pace_interval_ms": -1.0},
        {"pace_tokens_per_s": 0.0},
    ):
        with pytest.raises(ConfigError, match=next(iter(change))):
            check(CoordinatorConfig(**{"pace_interval_ms": 50.0, **change}))
    with pytest.raises(ConfigError, match="live_page"):
        read_pace(CoordinatorConfig(pace_interval_ms=50.0, http="127.0.0.1:0", live_page=True))
    assert read_pace(CoordinatorConfig()) is None
