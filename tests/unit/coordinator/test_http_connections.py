"""Connections of the HTTP front, real ones on loopback: quiet ones, too many, and those of clients
that do not read."""

import asyncio
import contextlib
import json
import logging
import os
import resource
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from coordinator.http import connection as connection_module
from coordinator.http import server as server_module
from coordinator.http.server import HttpServer
from coordinator.http.stream import EventStream, event, left
from dspark.runtime.addresses import split_endpoint
from dspark.runtime.listen_config import ListenConfig
from dspark.runtime.security import Security
from dspark.runtime.telemetry import Metrics
from tests.certificates import Authority
from tests.waiting import until

GET = b"GET %b HTTP/1.1\r\nHost: localhost\r\nOrigin: https://chat.example\r\n\r\n"
MOST, PAGE = 2, "https://chat.example"


class Application:
    """/ answers, /held when it is let go, /said with what was sent, /stream is told without an
    end, /gone waits for its client to leave."""

    def __init__(self, metrics: Metrics) -> None:
        config = SimpleNamespace(max_unread_s=0.2, http="127.0.0.1:0", cors_origin=[PAGE])
        processor = SimpleNamespace(metrics=metrics)
        self.api: Any = SimpleNamespace(config=config, processor=processor, security=Security())
        self.held = asyncio.Event()
        self.running = 0
        self.said: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.running += 1
        try:
            if scope["path"] == "/stream":
                return await EventStream(self.api, self._endless())(scope, receive, send)
            if scope["path"] == "/held":
                await self.held.wait()
            if scope["path"] == "/gone":
                return await left(receive)
            if scope["path"] == "/said":
                told = PlainTextResponse(await Request(scope, receive).body())
                return await told(scope, receive, send)
            await PlainTextResponse("fine")(scope, receive, send)
        finally:
            self.running -= 1

    async def _endless(self) -> AsyncGenerator[bytes]:
        try:
            while True:
                yield event({"text": "x" * 10_000})
                await asyncio.sleep(0)
        finally:
            self.said.append("closed")


@pytest.fixture
def application(metrics: Metrics) -> Application:
    return Application(metrics)


def dropped(metrics: Metrics, why: str) -> float:
    return metrics.value("dropped_total", kind="connection", reason=why)


@pytest.fixture
async def server(application: Application) -> AsyncIterator[HttpServer]:
    server = HttpServer(application, application.api, MOST)
    await server.start()
    yield server
    application.held.set()
    await server.stop(1.0)


@pytest.fixture
def address(server: HttpServer) -> tuple[str, int]:
    return split_endpoint(server.url.removeprefix("http://"))


Connected = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[..., Awaitable[Connected]]


@pytest.fixture
async def connect(address: tuple[str, int]) -> AsyncIterator[Connect]:
    """Makes a connection, and says something on it; closed at the end."""
    made: list[asyncio.StreamWriter] = []

    async def connected(said: bytes = b"") -> Connected:
        reader, writer = await asyncio.open_connection(*address)
        made.append(writer)
        writer.write(said)
        return reader, writer

    yield connected
    for each in made:
        each.close()


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """(status, headers, body) of an answer of known length."""
    status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, await reader.readexactly(int(headers["content-length"]))


async def test_quiet_connections_take_no_room_from_requests(
    connect: Connect, metrics: Metrics
) -> None:
    quiet = [await connect() for _ in range(MOST * server_module.CONNECTIONS)]
    reader, _ = await connect(GET % b"/")
    assert (await _head(reader))[0] == 200
    assert await quiet[0][0].read() == b"", "the one that has been quiet longest makes room"
    assert dropped(metrics, "room") == 1


async def test_a_connection_without_a_head_in_time_ends(
    connect: Connect, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "HEAD_S", 0.1)
    silent, dripping = await connect(), await connect(b"GET / HT")
    again = await connect(GET % b"/")
    assert (await _head(again[0]))[0] == 200
    again[1].write(b"GET / HT")  # a first answer is no licence
    async with asyncio.timeout(20):
        for reader, _ in (silent, dripping, again):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
    assert dropped(metrics, "head") == 3


@pytest.mark.parametrize(
    ("begun", "more"),
    [
        (b"GET / HTTP/1.1\r\n", b"a: b\r\n"),
        (b"GET / HTTP/1.1\r\na: ", b"b"),
        (b"GET /", b"a"),
        (GET % b"/held" + b"GET / HTTP/1.1\r\n", b"a: b\r\n"),  # while another is answered
        (b"POST /said HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", b"a: b\r\n"),
        (b"POST /said HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"a"),
    ],
)
async def test_a_head_without_an_end_ends_its_connection(
    connect: Connect, metrics: Metrics, begun: bytes, more: bytes
) -> None:
    reader, writer = await connect(begun)
    with contextlib.suppress(ConnectionError):
        for _ in range(64):
            writer.write(more * (connection_module.HEAD_BYTES // len(more)))
            await writer.drain()
        assert await reader.read() == b""
    await until(lambda: dropped(metrics, "head_bytes") == 1)


async def test_what_is_no_request_is_counted_and_not_logged(
    connect: Connect, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        reader, _ = await connect(b"\x16\x03\x01 a handshake of TLS\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    assert dropped(metrics, "malformed") == 3
    assert not caplog.records


async def test_a_body_of_many_small_parts_is_no_head(connect: Connect) -> None:
    count = 2 * connection_module.HEAD_BYTES
    head = b"POST /said HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    reader, _ = await connect(head + b"1;a\r\nx\r\n" * count + b"0\r\n\r\n")
    assert (await _head(reader))[::2] == (200, b"x" * count)


async def test_a_peer_that_begins_no_tls_ends(
    application: Application, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HEAD_S", 0.1)
    application.api.security = Security.of(ListenConfig(**Authority(tmp_path).settings()))
    server = HttpServer(application, application.api, MOST)
    await server.start()
    reader, writer = await asyncio.open_connection(
        *split_endpoint(server.url.removeprefix("https://"))
    )
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()
    await server.stop(1.0)


async def test_a_request_that_runs_is_no_quiet_connection(
    connect: Connect, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "HEAD_S", 0.05)
    reader, _ = await connect(GET % b"/held")
    await asyncio.sleep(0.2)
    application.held.set()
    assert (await _head(reader))[0] == 200


@pytest.mark.parametrize("how", ["close", "half", "with more asked than is answered"])
async def test_a_client_that_closes_has_left(
    server: HttpServer, connect: Connect, application: Application, how: str
) -> None:
    _, writer = await connect(GET % b"/gone")
    await until(lambda: application.running == 1)
    if how.startswith("with more"):
        writer.write(GET % b"/gone")
        await writer.drain()
    writer.write_eof() if how == "half" else writer.close()
    await until(lambda: not (application.running or server._server.server_state.connections))


async def test_a_request_cut_short_is_none(connect: Connect, application: Application) -> None:
    head = b"POST /gone HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"
    reader, writer = await connect(head + b"x")
    await until(lambda: application.running == 1)
    writer.write_eof()
    assert await reader.read() == b""
    await until(lambda: not application.running)


@pytest.mark.parametrize("cuts", [(), (20,), (-3,), (60, -5, -2)])
async def test_a_request_that_offers_another_protocol_is_read_as_it_is(
    connect: Connect, cuts: tuple[int, ...]
) -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
    told = b"POST /said HTTP/1.1\r\nHost: localhost\r\n%bContent-Length: 6\r\n\r\nletter"
    reader, writer = await connect()
    asked = told % offer
    for start, stop in pairwise((0, *(cut % len(asked) for cut in cuts), len(asked))):
        writer.write(asked[start:stop])
        await asyncio.sleep(0.02)  # packets of their own
    assert (await _head(reader))[::2] == (200, b"letter")
    writer.write(asked + told % b"")  # another one behind it
    for _ in range(2):
        assert (await _head(reader))[::2] == (200, b"letter")


async def test_offers_are_read_again_once_each(connect: Connect) -> None:
    reader, _ = await connect(b"CONNECT /said HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await _head(reader))[0] == 200, "nobody here tells methods apart"
    offer = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    reader, _ = await connect(offer * 600)
    for _ in range(600):
        assert (await _head(reader))[0] == 200


async def test_requests_beyond_the_bound_hear_when_to_come_back(
    connect: Connect, application: Application, metrics: Metrics
) -> None:
    running = [await connect(GET % b"/held") for _ in range(MOST)]
    await until(lambda: application.running == MOST)
    reader, writer = await connect(GET % b"/")
    status, headers, body = await _head(reader)
    assert (status, json.loads(body)["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(headers["retry-after"]) >= 1
    assert headers["access-control-allow-origin"] == PAGE, "the page can read why"
    other, _ = await connect(GET % b"/v1/messages")
    status, _, body = await _head(other)
    assert (status, json.loads(body)["error"]["type"]) == (429, "rate_limit_error")
    assert json.loads(body)["type"] == "error", "in Anthropic's shape"
    assert metrics.value("admission_rejections_total", reason="http_requests") == 2
    application.held.set()
    for each, _ in running:
        assert (await _head(each))[0] == 200
    writer.write(GET % b"/")
    assert (await _head(reader))[0] == 200


async def test_a_client_that_reads_nothing_loses_its_connection(
    server: HttpServer,
    address: tuple[str, int],
    application: Application,
    metrics: Metrics,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, address)
        client.send(GET % b"/stream")
        # What it did not take is thrown away: a connection that was closed in order would wait for
        # it.
        await until(lambda: application.said == ["closed"])
        await until(lambda: not (application.running or server._server.server_state.connections))
    assert metrics.value("slow_readers_cut_total") == 1
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_connections_are_bounded_by_descriptors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    used = len(os.listdir("/proc/self/fd"))
    for limit, most, wanted in (
        (used + 1000, 100, 100),
        (used + 1000, 5000, 936),
        (used + 40, 5000, 20),
        (8, 5, 1),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert abs(server_module.room(most) - wanted) <= 2


@pytest.fixture
def few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = len(os.listdir("/proc/self/fd")) + 10
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))


async def test_a_listener_with_few_descriptors_keeps_few_quiet_connections(
    few_descriptors: None, connect: Connect, application: Application, metrics: Metrics
) -> None:
    running, _ = await connect(GET % b"/held")
    await until(lambda: application.running)
    quiet = [await connect() for _ in range(6)]
    assert await quiet[0][0].read() == b""
    assert dropped(metrics, "room") > 0
    application.held.set()
    assert (await _head(running))[0] == 200, "who is being answered stays"
    exhausted = {"message": "socket.accept() out of system resource"}
    asyncio.get_running_loop().call_exception_handler(exhausted)
    assert dropped(metrics, "no_descriptors") == 1


async def test_what_cannot_be_taken_is_counted_and_told_once_a_second(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the event loop complains: many times for one connection, as long as it waits."""
    loop, said = asyncio.get_running_loop(), list[object]()
    monkeypatch.setattr(server_module, "SAY_EVERY_S", 60.0)
    monkeypatch.setattr(server_module.log, "warning", lambda event, **fields: said.append(event))
    others: list[object] = []
    loop.set_exception_handler(lambda _, context: others.append(context["message"]))
    exhausted = server_module.Exhausted(
        loop, metrics.dropped.labels(kind="connection", reason="no_descriptors").inc
    )
    for _ in range(500):
        error = OSError(24, "Too many open files")
        loop.call_exception_handler(
            {"message": "socket.accept() out of system resource", "exception": error}
        )
    loop.call_exception_handler({"message": "another"})
    assert (said, others) == (["http.no_descriptors"], ["another"])
    assert dropped(metrics, "no_descriptors") == 500
    exhausted.stop()
    loop.call_exception_handler({"message": "a third"})
    assert others == ["another", "a third"]
    loop.set_exception_handler(None)
