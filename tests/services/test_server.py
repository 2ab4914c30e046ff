"""The server harness over loopback: access, statuses, health, one port one process."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dspark.client.errors import read_error
from dspark.errors import ConfigError, Expired, InvalidRequest, Overloaded, Unavailable, Unsupported
from dspark.runtime import roles
from dspark.runtime.channel import auth_metadata, open_channel
from dspark.runtime.roles import Role
from dspark.runtime.security import Access, Security
from dspark.runtime.server import GrpcServer

TOKEN = "a-worker-secret-of-some-length"
NAME = "test.Echo"
KINDS = ("Once", "Many", "Gather", "Both")


def _register(servicer: Any, server: grpc.aio.Server) -> None:
    """A service with the four kinds of methods, over raw bytes."""

    async def once(request: bytes, context: object) -> bytes:
        return servicer(request)

    async def many(request: bytes, context: object) -> AsyncIterator[bytes]:
        yield b"first"
        yield servicer(request)

    async def gather(requests: AsyncIterator[bytes], context: object) -> bytes:
        return servicer(b"".join([r async for r in requests]))

    async def punctual(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        await asyncio.sleep(max(context.time_remaining(), 0.0))
        raise Expired("too late")

    async def both(requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
        async for request in requests:
            yield servicer(request)

    methods = {
        "Once": grpc.unary_unary_rpc_method_handler(once),
        "Many": grpc.unary_stream_rpc_method_handler(many),
        "Gather": grpc.stream_unary_rpc_method_handler(gather),
        "Both": grpc.stream_stream_rpc_method_handler(both),
        "Punctual": grpc.unary_unary_rpc_method_handler(punctual),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, methods),))


def _answer(request: bytes) -> bytes:
    errors: dict[bytes, Exception] = {
        b"field": InvalidRequest("sampling_params.top_p", "must be in (0, 1]"),
        b"unsupported": Unsupported("n", "not built"),
        b"odd": InvalidRequest("größe\n", "says größe"),
        b"half": InvalidRequest("n", "says \ud83d"),
        b"full": Overloaded("queue full", 1.5),
        b"nobody": Unavailable("no verifier"),
        b"late": Expired("too late"),
        b"garbage": DecodeError("secret detail"),
        b"bug": RuntimeError("secret detail"),
    }
    if request in errors:
        raise errors[request]
    return request


async def _call(
    channel: grpc.aio.Channel,
    kind: str,
    request: bytes,
    token: str | None,
    sent: asyncio.Event | None = None,
) -> list[bytes]:
    """sent: a stream's request leaves once this is set."""

    async def one() -> AsyncIterator[bytes]:
        if sent is not None:
            await sent.wait()
        yield request

    method, asked = {
        "Once": (channel.unary_unary, request),
        "Many": (channel.unary_stream, request),
        "Gather": (channel.stream_unary, one()),
        "Both": (channel.stream_stream, one()),
    }[kind]
    call = method(f"/{NAME}/{kind}")(asked, metadata=auth_metadata(token), timeout=5)
    return [reply async for reply in call] if kind in ("Many", "Both") else [await call]


@pytest.fixture(autouse=True)
def _workers_may_call_it(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = {f"/{NAME}/{kind}": frozenset({Role.WORKER}) for kind in (*KINDS, "Punctual")}
    monkeypatch.setattr(roles, "METHODS", mine)


@pytest.fixture
async def server() -> AsyncIterator[GrpcServer]:
    made = GrpcServer(bind="127.0.0.1:0", security=Security(Access(TOKEN)))
    made.add(_register, _answer, NAME)
    yield made
    await made.drain(0)


@pytest.fixture
async def endpoint(server: GrpcServer) -> str:
    return await server.start()


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_of_method_needs_the_token(endpoint: str, kind: str) -> None:
    async with open_channel(endpoint) as channel:
        assert (await _call(channel, kind, b"hi", TOKEN))[-1] == b"hi"
        for token in (None, "wrong-secret-of-some-length"):
            # Nothing of a stream is needed for the refusal. A request that crosses it would now and
            # then make this client report that the request could not be sent (INTERNAL) in place of
            # what the server said.
            refused = asyncio.Event()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await _call(channel, kind, b"hi", token, refused)
            refused.set()
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"field", grpc.StatusCode.INVALID_ARGUMENT),
        (b"unsupported", grpc.StatusCode.UNIMPLEMENTED),
        (b"full", grpc.StatusCode.RESOURCE_EXHAUSTED),
        (b"nobody", grpc.StatusCode.UNAVAILABLE),
        (b"late", grpc.StatusCode.DEADLINE_EXCEEDED),
        (b"garbage", grpc.StatusCode.INVALID_ARGUMENT),
        (b"bug", grpc.StatusCode.INTERNAL),
    ],
)
async def test_errors_become_statuses_in_one_place(
    endpoint: str, kind: str, request_: bytes, status: grpc.StatusCode
) -> None:
    async with open_channel(endpoint) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _call(channel, kind, request_, TOKEN)
    assert caught.value.code() == status
    trailing = dict(caught.value.trailing_metadata())
    assert trailing.get("bad-field") == {
        b"field": "sampling_params.top_p",
        b"unsupported": "n",
        b"garbage": "request",
    }.get(request_)
    assert "secret detail" not in caught.value.details()
    for name in ("retry-after-ms", "grpc-retry-pushback-ms"):
        assert trailing.get(name) == ("1500" if request_ == b"full" else None)
    if request_ == b"full":  # and in Google's words
        told, info = status_pb2.Status(), error_details_pb2.RetryInfo()
        told.ParseFromString(trailing["grpc-status-details-bin"])
        assert told.details[0].Unpack(info)
        assert (told.code, info.retry_delay.ToMilliseconds()) == (8, 1500)


@pytest.mark.parametrize(
    ("request_", "field", "problem"),
    [(b"odd", r"gr\xf6\xdfe\n", "says größe"), (b"half", "n", r"says \ud83d")],
)
async def test_words_that_grpc_cannot_send_are_escaped(
    endpoint: str, request_: bytes, field: str, problem: str
) -> None:
    """The call ended with no status of ours, or not at all."""
    async with open_channel(endpoint) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _call(channel, "Once", request_, TOKEN)
    error = read_error(caught.value, endpoint)
    assert isinstance(error, InvalidRequest)
    assert (error.field, error.problem) == (field, problem)


async def test_an_error_whose_caller_leaves_at_that_moment_is_no_fault(
    endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Both notice the deadline: one call in fifty is over when its error is to be sent."""
    async with open_channel(endpoint) as channel:
        ask = channel.unary_unary(f"/{NAME}/Punctual")
        for _ in range(20):
            calls = [ask(b"", metadata=auth_metadata(TOKEN), timeout=0.03) for _ in range(32)]
            codes = [await call.code() for call in calls]
            assert set(codes) == {grpc.StatusCode.DEADLINE_EXCEEDED}
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == []


async def test_health_is_free_truthful_and_can_be_watched(
    server: GrpcServer, endpoint: str
) -> None:
    reply = health_pb2.HealthCheckResponse
    async with open_channel(endpoint) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        async def ask(name: str) -> int:
            asked = health_pb2.HealthCheckRequest(service=name)
            return int((await stub.Check(asked, timeout=5)).status)

        assert await ask("") == reply.SERVING
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=NAME), timeout=20)
        assert (await watch.read()).status == await ask(NAME) == reply.NOT_SERVING
        for serving in (True, False):
            await server.set_serving(serving)
            wanted = reply.SERVING if serving else reply.NOT_SERVING
            assert (await watch.read()).status == await ask(NAME) == wanted
        watch.cancel()


async def test_a_port_that_is_taken_is_an_error_and_not_shared(endpoint: str) -> None:
    second = GrpcServer(bind=endpoint, security=Security(Access(TOKEN)))
    second.add(_register, _answer, NAME)
    with pytest.raises(ConfigError, match="cannot listen"):
        await second.start()
    await second.drain(0)
