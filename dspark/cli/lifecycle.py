"""`dspark up` and `dspark down`."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dspark import shipped
from dspark.cli.telling import tell
from dspark.errors import ConfigError, Unavailable

if TYPE_CHECKING:
    from dspark.client.cell import Cell

LOOK_S = 1.0  # of `up --block`, at its cell
RAY_GONE_S = 30.0  # without its Ray cluster, which is longer than a `dspark down` elsewhere takes to forget the cell
SILENT_S = 120.0  # without a coordinator that answers, which is longer than one takes to come back


def add_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Adds `up` and `down`."""
    up = commands.add_parser(
        "up",
        parents=[shared],
        help="start a cluster, or join a running Ray cluster; returns when it serves",
        description="Options override the environment (DSPARK_CLUSTER__<KEY>), which overrides section `cluster` of "
        "the file. Sections `coordinator`, `frontend`, `verify` and `draft` of the file configure the processes, "
        "section `autoscale` the pools that follow the load.",
    )
    up.add_argument(
        "--target", metavar="PATH_OR_ID", help="folder, hub id, GGUF file or name (smollm2, the shipped pair)"
    )
    up.add_argument("--drafter", metavar="PATH_OR_ID", help="drafter for it, of any family; none: plain decoding")
    up.add_argument("--revision", help="revision of both when they are hub ids")
    up.add_argument("--engine", choices=["real", "synthetic"], help="synthetic: no models, given step times (real)")
    up.add_argument("--synthetic", metavar="FILE", help="YAML of a synthetic pair, see docs/simulator.md")
    up.add_argument("--verifiers", type=int, metavar="N", help="verifier processes (1)")
    up.add_argument("--drafters", type=int, metavar="N", help="drafter processes (1)")
    up.add_argument("--frontends", type=int, metavar="N", help="front end processes before the coordinator (0)")
    up.add_argument(
        "--autoscale",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="let the pools follow the load, within section `autoscale` of the file (off)",
    )
    up.add_argument("--http", metavar="HOST:PORT", help="where the HTTP front listens; none: off (127.0.0.1:8000)")
    up.add_argument("--drain-s", type=float, metavar="S", help="time of a worker that is scaled away (30)")
    up.add_argument("--policy", help="default policy: off, fixed:k, threshold:t or adaptive")
    up.add_argument("--rule", choices=["token", "block", "coupled"], help="default acceptance rule")
    up.add_argument("-f", "--config", type=Path, metavar="FILE", help="YAML configuration")
    up.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="running Ray cluster, no head is started or stopped then (RAY_ADDRESS, else a local cluster)",
    )
    up.add_argument("--cell", metavar="NAME", help="name of the cell, which keeps cells of one cluster apart (dspark)")
    up.add_argument(
        "--dashboard", action="store_true", default=None, help="run Ray's dashboard beside the local cluster"
    )
    up.add_argument("--block", action="store_true", help="stay until told to end, then take the cell down")
    up.add_argument("--bind", metavar="HOST", help="address every server listens on (127.0.0.1)")
    up.add_argument("--port", type=int, help="port of the coordinator (a free one)")
    up.add_argument("--insecure", action="store_true", default=None, help="listen beyond this machine without a token")
    up.add_argument("--tls-cert", metavar="FILE", help="certificate of every process; `dspark certificates` makes some")
    up.add_argument("--tls-key", metavar="FILE", help="its private key")
    up.add_argument("--tls-ca", metavar="FILE", help="authority whose certificates are believed, and asked of callers")
    up.add_argument("--tls-server-name", metavar="NAME", help="name expected in certificates (the address)")
    up.add_argument(
        "--tls-require-client-cert",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="callers need a certificate too; without, tokens alone say who calls",
    )
    up.add_argument("--device", help="device of both pools (what is there)")
    up.add_argument("--verifier-gpus", type=float, metavar="N", help="GPUs Ray reserves for each (1 if there are any)")
    up.add_argument("--drafter-gpus", type=float, metavar="N", help="GPUs Ray reserves for each (1 if there are any)")
    up.add_argument("--start-timeout-s", type=float, metavar="S", help="longest wait for the cell to serve (600)")
    up.set_defaults(run=_up)
    down = commands.add_parser(
        "down",
        parents=[shared],
        help="stop the cluster and everything it started",
        description="Takes nothing new, lets running streams finish, then ends every process.",
    )
    down.add_argument("--grace-s", type=float, default=30.0, metavar="S", help="time for running streams (30)")
    down.add_argument("--now", action="store_true", help="end everything at once; running streams break off")
    down.set_defaults(run=_down)


def say(line: str) -> None:
    """One line of progress. A reader that has left or a disk that is full must not stop the work half-way."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def pair(target: str | None, drafter: str | None) -> dict[str, str | None]:
    """The pair to serve: what is given, else the shipped one, whose drafter goes with its target."""
    if drafter is None and target in (None, shipped.TARGET):
        return {"target": shipped.TARGET, "drafter": str(shipped.drafter())}
    return {"target": target, "drafter": drafter}


def _up(args: argparse.Namespace) -> int:
    from deploy.cell_plan import read_config
    from deploy.up import bring_up

    names = (
        "revision",
        "engine",
        "synthetic",
        "verifiers",
        "drafters",
        "frontends",
        "policy",
        "rule",
        "address",
        "cell",
        "dashboard",
        "bind",
        "port",
        "insecure",
        "tls_cert",
        "tls_key",
        "tls_ca",
        "tls_server_name",
        "tls_require_client_cert",
        "device",
    )
    more = ("verifier_gpus", "drafter_gpus", "http", "drain_s", "start_timeout_s")
    flags: dict[str, object] = {name: getattr(args, name) for name in (*names, *more)}
    flags |= {"target": args.target, "drafter": args.drafter}
    config = read_config(file=args.config, environ=os.environ, flags=flags, pair=pair)
    signal.signal(signal.SIGTERM, _interrupt)  # cleans up as Ctrl-C does
    scaling = {"enabled": args.autoscale}
    cell = bring_up(config, file=args.config, environ=os.environ, say=say, scaling=scaling)
    tell(cell.frontends or cell.endpoint)
    if args.block:
        _stay(cell)
    return 0


def _stay(cell: Cell) -> None:
    """Until a signal, and takes the cell down then; or until somebody else has taken it down.

    Unavailable when it has ended by itself, or cannot be reached; what is left of it on this machine is cleared.
    """
    from deploy.down import take_down
    from dspark.client.cell import NoCell, find_cell, is_alive

    signal.signal(signal.SIGTERM, _interrupt)  # Ray has put its own in the place of ours
    there = answered = time.monotonic()
    with contextlib.suppress(NoCell):
        try:
            while find_cell().cell_id == cell.cell_id:
                now = time.monotonic()
                there = now if not cell.ray_pid or is_alive(cell.ray_pid) else there
                answered = now if _answers(cell) else answered
                if now - there > RAY_GONE_S:
                    raise Unavailable(f"the cell has ended: its Ray cluster (process {cell.ray_pid}) is gone")
                if now - answered > SILENT_S:
                    left = "" if cell.ray_pid else "; it was left as it is, `dspark down` takes it down"
                    raise Unavailable(f"nobody has answered at {cell.endpoint} for {SILENT_S:g} s{left}")
                time.sleep(LOOK_S)
        except KeyboardInterrupt:
            take_down(say)
        except Unavailable:
            if cell.ray_pid:  # a Ray cluster of its own, on this machine; in another one it may be only out of reach
                take_down(say, 0.0)
            raise


def _answers(cell: Cell) -> bool:
    """Whether its coordinator lives."""
    import grpc

    from dspark.runtime.channel import sync_channel
    from dspark.runtime.health import health_of

    try:
        with sync_channel(cell.endpoint, tls=cell.tls()) as channel:
            health_of(channel, "")
    except (grpc.RpcError, ConfigError, OSError):  # files of certificates may be changing
        return False
    return True


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _down(args: argparse.Namespace) -> int:
    from deploy.down import take_down

    take_down(say, 0.0 if args.now else max(args.grace_s, 0.0))
    return 0
