"""Who may generate on a coordinator that strangers can reach."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from coordinator import process
from coordinator.config import CoordinatorConfig
from dspark.runtime.channel import auth_metadata, open_channel
from dspark.runtime.identity import write_token
from dspark.wire.v1 import generate_pb2, generate_pb2_grpc

pytestmark = pytest.mark.services


async def _ask(port: int, token: str | None) -> grpc.StatusCode | None:
    async with open_channel(f"127.0.0.1:{port}") as channel:
        stub = generate_pb2_grpc.GenerationStub(channel)
        try:
            await stub.GetModelInfo(generate_pb2.GetModelInfoRequest(), metadata=auth_metadata(token), timeout=5)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return None


@pytest.mark.parametrize(
    ("bind", "client_secret", "insecure", "open_to_strangers"),
    [
        ("127.0.0.1:0", False, False, True),
        ("0.0.0.0:0", False, False, False),
        ("0.0.0.0:0", True, False, False),
        ("0.0.0.0:0", False, True, True),
    ],
)
async def test_strangers_generate_only_where_the_operator_lets_them(
    tmp_path: Path, bind: str, client_secret: bool, insecure: bool, open_to_strangers: bool
) -> None:
    token = write_token(tmp_path / "token")
    client = write_token(tmp_path / "client") if client_secret else None
    config = CoordinatorConfig(
        bind=bind,
        token_file=str(tmp_path / "token"),
        client_token_file=str(tmp_path / "client") if client_secret else None,
        insecure=insecure,
    )
    running = await process.start(config)
    port = int(running.endpoint.rpartition(":")[2])
    denied = grpc.StatusCode.UNAUTHENTICATED
    # Without a verifier whoever is let in hears UNAVAILABLE.
    assert (await _ask(port, None) != denied) is open_to_strangers
    assert await _ask(port, token) != denied
    if client is not None:
        assert await _ask(port, client) != denied
    await running.stop(0.1)
