"""Readers of a metrics page beyond its bounds are closed."""

import contextlib
import socket
import time
from functools import partial

import pytest

from dspark.runtime import threaded_http
from dspark.runtime.metrics_server import MetricsServer
from dspark.runtime.security import Security
from dspark.runtime.telemetry import Metrics
from dspark.runtime.threaded_http import READERS
from tests.waiting import wait_until


def test_a_reader_too_many_is_closed_and_counted() -> None:
    metrics = Metrics()
    server = MetricsServer(metrics, Security(), "127.0.0.1:0", 0)
    with contextlib.ExitStack() as stack:
        stack.callback(server.close)
        readers = [
            stack.enter_context(
                socket.create_connection(("127.0.0.1", server.server_port), timeout=10)
            )
            for _ in range(READERS + 1)
        ]
        assert readers[-1].recv(1) == b"", "closed unanswered"
        assert metrics.value("dropped_total", kind="connection", reason="metrics_readers") == 1
        readers[0].sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert readers[0].recv(64).startswith(b"HTTP/1.0 200")


def test_a_reader_that_drips_is_closed_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threaded_http, "PATIENCE_S", 0.3)
    metrics = Metrics()
    server = MetricsServer(metrics, Security(), "127.0.0.1:0", 0)
    with (
        contextlib.closing(server),
        socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as reader,
    ):
        reader.sendall(b"GET /metrics HTTP/1.0\r\nX: ")
        with contextlib.suppress(OSError):
            for _ in range(200):
                reader.sendall(b"x")
                time.sleep(0.05)
            pytest.fail("ten seconds later it still holds its place")
        with contextlib.suppress(ConnectionResetError):
            assert reader.recv(1) == b"", "it may not hold its place for ten seconds"
    slow = partial(metrics.value, "dropped_total", kind="connection", reason="metrics_slow")
    wait_until(lambda: slow() == 1)
