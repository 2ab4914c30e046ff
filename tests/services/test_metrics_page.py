"""Readers of a metrics page beyond its bounds are closed."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from dspark.runtime import threaded_http
from dspark.runtime.metrics_server import MetricsServer
from dspark.runtime.security import Security
from dspark.runtime.telemetry import Metrics
from dspark.runtime.threaded_http import READERS
from tests.waiting import wait_until


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def connect(metrics: Metrics) -> Iterator[Callable[[], socket.socket]]:
    """Makes a connection to their page; closed at the end."""
    with contextlib.ExitStack() as ends:
        server = MetricsServer(metrics, Security(), "127.0.0.1:0", 0)
        ends.callback(server.close)
        there = ("127.0.0.1", server.server_port)
        yield lambda: ends.enter_context(socket.create_connection(there, timeout=10))


def test_a_reader_too_many_is_closed_and_counted(
    metrics: Metrics, connect: Callable[[], socket.socket]
) -> None:
    readers = [connect() for _ in range(READERS + 1)]
    assert readers[-1].recv(1) == b"", "closed unanswered"
    assert metrics.value("dropped_total", kind="connection", reason="metrics_readers") == 1
    readers[0].sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    assert readers[0].recv(64).startswith(b"HTTP/1.0 200")


def test_a_reader_that_drips_is_closed_and_counted(
    metrics: Metrics, connect: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threaded_http, "PATIENCE_S", 0.3)
    reader = connect()
    reader.sendall(b"GET /metrics HTTP/1.0\r\nX: ")
    with contextlib.suppress(OSError):
        for _ in range(200):
            reader.sendall(b"x")
            time.sleep(0.05)
        pytest.fail("ten seconds later it still holds its place")
    slow = partial(metrics.value, "dropped_total", kind="connection", reason="metrics_slow")
    wait_until(lambda: slow() == 1)
