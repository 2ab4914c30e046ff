"""Readers of a metrics page beyond its bound are closed and counted."""

import contextlib
import socket

from dspark.runtime.metrics_server import READERS, MetricsServer
from dspark.runtime.security import Security
from dspark.runtime.telemetry import Metrics


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
