"""Serves `/metrics` over HTTP, in the exposition formats of Prometheus.

Access is that of all listeners: TLS where the process has certificates, then a token or a
certificate's name.
"""

from __future__ import annotations

import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client.exposition import choose_encoder

from dspark.errors import ConfigError, Denied, Forbidden
from dspark.runtime.roles import METRICS
from dspark.runtime.security import Security
from dspark.runtime.telemetry import Metrics

READERS = 16  # connections at one time; more are closed unanswered
PATIENCE_S = 5.0  # for a handshake, and for a request


class MetricsServer(ThreadingHTTPServer):
    """Serves `/metrics` until closed, on the host of `bind`, or on loopback where readers need no
    credentials; port 0 takes any."""

    daemon_threads = True
    allow_reuse_port = False  # a second process must not share the port unseen

    def __init__(self, metrics: Metrics, security: Security, bind: str, port: int) -> None:
        self.exposed, self.access = metrics.exposed, security.access
        self._too_many = metrics.dropped.labels(kind="connection", reason="metrics_readers")
        self._room = threading.BoundedSemaphore(READERS)
        self._context = security.server_context()
        host = security.metrics_host(bind)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Page)
        except OSError as error:
            raise ConfigError(
                f"metrics_port: cannot listen on {host}:{port}: {error.strerror}"
            ) from error
        threading.Thread(target=self.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Ends the server in the background: it notices within half a second, and an event loop
        must not wait for that."""
        threading.Thread(target=self._end, name="metrics-end", daemon=True).start()

    def _end(self) -> None:
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self._too_many.inc()
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves a connection on its own thread, so that a slow handshake delays no other one."""
        try:
            request.settimeout(PATIENCE_S)
            if self._context is not None:
                request = self._context.wrap_socket(request, server_side=True)
            super().process_request_thread(request, client_address)
        except (OSError, ssl.SSLError):
            self.shutdown_request(request)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs nothing: readers that disconnect are ordinary."""


class _Page(BaseHTTPRequestHandler):
    server: MetricsServer
    server_version, sys_version = "dspark", ""

    def do_GET(self) -> None:
        try:
            shown = self.headers.get("Authorization")
            self.server.access.admit("/metrics", METRICS, authorization=shown, names=self._names())
        except Denied as error:
            self._answer(403 if isinstance(error, Forbidden) else 401, b"", "text/plain")
            return
        if self.path.partition("?")[0] not in ("/", "/metrics"):
            self._answer(404, b"", "text/plain")
            return
        encoder, kind = choose_encoder(self.headers.get("Accept", ""))
        self._answer(200, encoder(self.server.exposed), kind)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: paths of requests are untrusted text."""

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _names(self) -> list[str]:
        """Alternative names of the reader's certificate, which TLS has verified."""
        if not isinstance(self.connection, ssl.SSLSocket):
            return []
        shown = self.connection.getpeercert() or {}
        return [str(name[1]) for name in shown.get("subjectAltName", ())]
