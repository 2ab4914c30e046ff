"""`dspark health [HOST:PORT]`: a gRPC health check; exit code 0 if the process lives, 1 if not. For
containers' probes, and to wait for a cell."""

from __future__ import annotations

import argparse
import time
from typing import Any

from dspark.cli.options import add_tls, wait_s
from dspark.errors import Unavailable

POLL_S = 0.1
ASK_S = 1.0  # least time for an answer: `--wait 0` asks once


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "health",
        help="ask one process whether it lives, or wait until it serves",
        description="Exit code 0: the process lives, 1: it does not. With --wait, 0: it serves, as "
        "all it needs is there, 1: it does not in that time.",
    )
    parser.add_argument(
        "endpoint",
        nargs="?",
        metavar="HOST:PORT",
        help="a process of a cell (the coordinator of this state folder)",
    )
    parser.add_argument("--wait", type=wait_s, help="ask until it serves, at most so many seconds")
    add_tls(parser)
    parser.set_defaults(run=_health)


def wait_for(args: argparse.Namespace) -> None:
    """Waits until the process that the arguments name is ready; Unavailable after `--wait` seconds.
    Neither the process nor its cell need exist yet."""
    from dspark.runtime.channel import CALL_S, READY

    deadline = time.monotonic() + args.wait
    while True:
        left = deadline - time.monotonic()
        try:
            endpoint, state = _asked(args, READY, min(CALL_S, max(left, ASK_S)))
            if state == "serving":
                return
            why = f"{endpoint} is {state}"
        except Unavailable as error:
            why = str(error)
        if time.monotonic() >= deadline:
            raise Unavailable(f"not serving within {args.wait:g} s: {why}")
        time.sleep(min(POLL_S, max(deadline - time.monotonic(), 0.0)))


def _asked(args: argparse.Namespace, service: str, longest_s: float) -> tuple[str, str]:
    """Returns (endpoint, its state of health); raises Unavailable if it does not answer."""
    import grpc

    from dspark.client.cell import NoCell, whom_to_call
    from dspark.runtime.channel import health_of, sync_channel
    from dspark.runtime.tls import Tls

    try:
        endpoint, _, _, tls = whom_to_call(args.endpoint, None, Tls.of(args))
    except NoCell as error:
        raise Unavailable(str(error)) from None
    with sync_channel(endpoint, tls=tls) as channel:
        try:
            return endpoint, health_of(channel, service, longest_s)
        except grpc.RpcError as error:
            raise Unavailable(
                f"{endpoint}: {error.code().name.lower()}: {error.details()}"
            ) from None


def _health(args: argparse.Namespace) -> int:
    if args.wait is not None:
        wait_for(args)
        print("serving")
        return 0
    from dspark.runtime.channel import CALL_S

    _, state = _asked(args, "", CALL_S)
    lives = state == "serving"
    print("alive" if lives else state)
    return 0 if lives else 1
