"""`dspark sd`: lists the address of /metrics of every process in the format of Prometheus.

Processes get new ports when they are replaced, so a list written by hand becomes wrong. Printed, it
is a file for `file_sd_configs`; served, it answers `http_sd_configs`, with a new status from the
coordinator for every request.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from dspark.cli.options import add_endpoint, open_client
from dspark.errors import ConfigError, DsparkError

if TYPE_CHECKING:
    from dspark.client import CellStatus

Groups = list[dict[str, Any]]
EVERYWHERE = ("0.0.0.0", "[::]")  # hosts of processes that listen on all addresses


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "sd",
        help="list where metrics are, for Prometheus",
        description="Prints targets for file_sd_configs; with --serve, answers http_sd_configs at "
        "/sd until Ctrl-C.",
    )
    add_endpoint(parser)
    parser.add_argument(
        "--serve", metavar="HOST:PORT", help="serve the list over HTTP; port 0 takes any"
    )
    parser.set_defaults(run=_discover)


def groups(reply: CellStatus, asked: str) -> Groups:
    """One target group per process with metrics: [{"targets": [...], "labels": {...}}]. asked:
    endpoint of the coordinator, whose host stands for those that a process does not know."""
    found: Groups = []
    for process in reply.processes:
        if not process.metrics_port:
            continue
        host, _, _ = process.endpoint.rpartition(":")
        if host in EVERYWHERE:
            host = asked.rpartition(":")[0]
        role, _, _ = process.name.partition("/")
        labels = {"role": role, "replica": process.name, "incarnation": str(process.incarnation)}
        found.append({"targets": [f"{host}:{process.metrics_port}"], "labels": labels})
    return found


def _discover(args: argparse.Namespace) -> int:
    from dspark.client.cell import whom_to_call

    with open_client(args) as client:
        _, asked, _, _ = whom_to_call(args.endpoint, None, None)
        if args.serve is None:
            print(json.dumps(groups(client.status(), asked), indent=2))
            return 0
        server = serve(args.serve, lambda: groups(client.status(), asked))
        print(
            f"targets at http://{args.serve.rpartition(':')[0]}:{server.server_port}/sd", flush=True
        )
        try:
            threading.Event().wait()
        finally:
            server.shutdown()
            server.server_close()
    return 0


def serve(bind: str, ask: Callable[[], Groups]) -> ThreadingHTTPServer:
    """Answers GET /sd on a thread of its own until shut down; 503 while the coordinator does not
    answer."""
    from dspark.runtime.security import split_endpoint

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in ("/", "/sd"):
                self._answer(404, {"error": "targets are at /sd"})
                return
            try:
                self._answer(200, ask())
            except DsparkError as error:  # Prometheus keeps the last list it read
                self._answer(503, {"error": str(error)})

        def _answer(self, status: int, content: object) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Logs nothing: a line per scrape has no use."""

    try:
        server = ThreadingHTTPServer(split_endpoint(bind, "serve"), Handler)
    except OSError as error:
        raise ConfigError(f"serve: cannot listen on {bind}: {error}") from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="sd", daemon=True).start()
    return server
