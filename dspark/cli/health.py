"""`dspark health HOST:PORT`: one gRPC health check; exit code 0 when it serves, 1 when not. For containers' probes."""

from __future__ import annotations

import argparse
from typing import Any

from dspark.cli import credentials
from dspark.errors import Unavailable

TIMEOUT_S = 2.0


def add_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Adds `health`."""
    parser = commands.add_parser(
        "health",
        parents=[shared],
        help="ask one process whether it serves",
        description="Exit code 0: it serves; 1: it does not. Without --service: whether the process lives.",
    )
    parser.add_argument("endpoint", metavar="HOST:PORT", help="a process of a cell")
    parser.add_argument("--service", default="", metavar="NAME", help="for example dspark.wire.v1.Verify")
    credentials.add_options(parser)
    parser.set_defaults(run=_health)


def _health(args: argparse.Namespace) -> int:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from dspark.cli.credentials import tls_of
    from dspark.runtime.channel import sync_channel

    with sync_channel(args.endpoint, tls=tls_of(args)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            reply = stub.Check(health_pb2.HealthCheckRequest(service=args.service), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise Unavailable(f"{args.endpoint}: {error.code().name.lower()}: {error.details()}") from None
    state = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status).lower()
    print(state)
    return 0 if reply.status == health_pb2.HealthCheckResponse.SERVING else 1
