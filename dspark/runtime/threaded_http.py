"""A small HTTP server on threads, for lists that machines read now and then. It has a bound on
connections and a deadline for each, and says nothing about its callers."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from dspark.runtime.addresses import listening

READERS = 16  # connections at one time; more are closed unanswered
PATIENCE_S = 10.0  # for a whole connection: handshake, request and answer


class ThreadedHttp(ThreadingHTTPServer):
    """Serves from its construction on, until `close`; port 0 takes any. key: the setting to blame
    for an address; ended: called for each connection that is ended here, with "readers" for one
    beyond the bound and "slow" for one that took too long. Raises ConfigError."""

    daemon_threads = True
    allow_reuse_port = False  # a second process must not share the port unseen

    def __init__(
        self,
        key: str,
        address: tuple[str, int],
        page: type[Page],
        *,
        context: ssl.SSLContext | None = None,
        ended: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._context, self._ended = context, ended
        self._room = threading.BoundedSemaphore(READERS)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        with listening(key, *address):
            super().__init__(address, page)
        threading.Thread(target=self.serve_forever, name=key, daemon=True).start()

    def close(self) -> None:
        """Ends the server in the background: it notices within half a second, and an event loop
        must not wait for that."""
        threading.Thread(target=self._end, name="http-end", daemon=True).start()

    def _end(self) -> None:
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self._ended("readers")
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves a connection on its own thread, so that a slow handshake delays no other one."""
        with contextlib.ExitStack() as ending:
            ending.callback(self._room.release)
            try:
                same = ending.enter_context(request.dup())  # a handshake takes the first one over
                overdue = threading.Timer(PATIENCE_S, self._hang_up, (same,))
                overdue.daemon = True
                overdue.start()
                ending.callback(overdue.cancel)
                if self._context is not None:
                    request = self._context.wrap_socket(request, server_side=True)
                super().process_request_thread(request, client_address)
            except (OSError, ssl.SSLError):
                self.shutdown_request(request)

    def _hang_up(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it has just ended
            connection.shutdown(socket.SHUT_RDWR)
            self._ended("slow")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs nothing: readers that disconnect are ordinary."""


class Page(BaseHTTPRequestHandler):
    """Answers one request; a page implements `do_GET`."""

    server_version, sys_version = "dspark", ""

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: paths of requests are untrusted text."""

    def answer(self, status: int, body: bytes, kind: str) -> None:
        """Sends a whole answer of a content type."""
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer_json(self, status: int, content: object) -> None:
        self.answer(status, json.dumps(content).encode(), "application/json")
