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
from typing import TYPE_CHECKING, Any

from dspark.cli.options import add_endpoint, open_client
from dspark.errors import ConfigError, DsparkError

if TYPE_CHECKING:
    from dspark.client import CellStatus
    from dspark.runtime.threaded_http import ThreadedHttp

Groups = list[dict[str, Any]]


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "sd",
        help="list where metrics are, for Prometheus",
        description="Prints targets for file_sd_configs; with --serve, answers http_sd_configs at "
        "/sd until Ctrl-C.",
    )
    add_endpoint(parser)
    parser.add_argument("--serve", help="serve the list over HTTP, on loopback; port 0 takes any")
    parser.set_defaults(run=_discover)


def groups(reply: CellStatus, asked: str) -> Groups:
    """One target group per process with metrics: [{"targets": [...], "labels": {...}}]. asked:
    endpoint of the coordinator, whose host stands for those that a process does not know."""
    from dspark.runtime.addresses import EVERYWHERE, join_endpoint, split_endpoint

    found: Groups = []
    for process in reply.processes:
        if not process.metrics_port:
            continue
        host, _ = split_endpoint(process.endpoint)
        if host in EVERYWHERE:
            host, _ = split_endpoint(asked.rpartition("/")[2], "endpoint")  # of dns:///host:port
        role, _, _ = process.name.partition("/")
        labels = {"role": role, "replica": process.name, "incarnation": str(process.incarnation)}
        found.append({"targets": [join_endpoint(host, process.metrics_port)], "labels": labels})
    return found


def _discover(args: argparse.Namespace) -> int:
    def ask() -> Groups:
        # anew each time: a cell that is started again has other addresses, and other certificates
        with open_client(args) as client:
            return groups(client.status(), client.coordinator)

    if args.serve is None:
        print(json.dumps(ask(), indent=2))
        return 0
    open_client(args).close()  # wrong credentials are told here, not to Prometheus
    server = serve(args.serve, ask)
    print(f"targets at http://{args.serve.rpartition(':')[0]}:{server.server_port}/sd", flush=True)
    try:
        threading.Event().wait()
    finally:
        server.close()
    return 0


def serve(bind: str, ask: Callable[[], Groups]) -> ThreadedHttp:
    """Answers GET /sd on threads of its own until closed; 503 while the coordinator does not
    answer."""
    from dspark.runtime.addresses import is_loopback, split_endpoint
    from dspark.runtime.threaded_http import Page, ThreadedHttp

    address = split_endpoint(bind, "serve")
    if not is_loopback(address[0]):
        raise ConfigError(
            f"serve: {bind} can be reached from outside this machine, and the list asks nobody for "
            "a key; serve it on 127.0.0.1, or print it into a file for file_sd_configs"
        )

    class Targets(Page):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in ("/", "/sd"):
                self.answer_json(404, {"error": "targets are at /sd"})
                return
            try:
                self.answer_json(200, ask())
            except DsparkError as error:  # Prometheus keeps the last list it read
                self.answer_json(503, {"error": str(error)})

    return ThreadedHttp("serve", address, Targets)
