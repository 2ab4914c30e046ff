"""`dspark up`, `dspark down`, and `dspark scale verify=2 draft=3`, which returns when the new sizes
serve."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark.cli.options import add_keys, end_as_by_ctrl_c, say, tell, wait_s
from dspark.errors import Unavailable, WrongCommand

if TYPE_CHECKING:
    from dspark.client.cell import Cell

LOOK_S = 1.0  # interval at which `up --block` checks its cell
# longest time without its Ray cluster; a `dspark down` elsewhere forgets the cell sooner
RAY_GONE_S = 30.0
SILENT_S = 120.0  # longest time without an answer of the coordinator, which restarts sooner
WORDS = {"on": True, "off": False}


def add_commands(commands: Any) -> None:
    from deploy.config import ClusterConfig

    up = commands.add_parser(
        "up",
        help="start a cluster, or join a running Ray cluster; returns when it serves",
        description="Options override the environment (DSPARK_CLUSTER__<KEY>), which overrides "
        "section `cluster` of the file. Sections `coordinator`, `frontend`, `verify` and `draft` "
        "of the file configure the processes, section `autoscale` the pools that follow the load.",
    )
    add = up.add_argument
    add("-f", "--config", type=Path, help="YAML configuration")
    add("--block", action="store_true", help="stay until told to end, then take the cell down")
    add(
        "--autoscale",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="let the pools follow the load, within section `autoscale` of the file (off)",
    )
    add_keys(up, ClusterConfig)
    up.set_defaults(run=_up)
    down = commands.add_parser(
        "down",
        help="stop the cluster and everything it started",
        description="Takes nothing new, lets running streams finish, then ends every process.",
    )
    add = down.add_argument
    add("--grace-s", type=wait_s, default=30, help="time for running streams")
    add("--now", action="store_true", help="end everything at once; running streams break off")
    down.set_defaults(run=_down)
    scaling = commands.add_parser(
        "scale",
        help="change the size of either pool while it serves",
        description="dspark scale verify=2 draft=3. Workers that leave get nothing new; streams go "
        "on. autoscale=on|off: whether pools follow the load by themselves, within section "
        "`autoscale` of the file.",
    )
    add = scaling.add_argument
    add("sizes", nargs="*", metavar="POOL=N", help="verify=N, draft=N or autoscale=on|off")
    scaling.set_defaults(run=_scale)


def _up(args: argparse.Namespace) -> int:
    from deploy.cell_plan import read_config
    from deploy.config import ClusterConfig
    from deploy.up import bring_up

    flags = {field.name: getattr(args, field.name) for field in dataclasses.fields(ClusterConfig)}
    config = read_config(file=args.config, environ=os.environ, flags=flags)
    end_as_by_ctrl_c()
    scaling = {"enabled": args.autoscale}
    cell = bring_up(config, file=args.config, environ=os.environ, say=say, scaling=scaling)
    tell(cell.frontends or cell.endpoint)
    if args.block:
        _stay(cell)
    return 0


def _stay(cell: Cell) -> None:
    """Waits for Ctrl-C, SIGTERM or SIGHUP, then takes the cell down; returns if another command
    does so.

    Unavailable if the cell has ended by itself or does not answer; if it has a Ray cluster of its
    own, that is taken down.
    """
    from deploy.down import answers, take_down_wholly
    from deploy.process_tags import own
    from dspark.client.cell import NoCell, find_cell

    there = answered = time.monotonic()
    with contextlib.suppress(NoCell):
        try:
            while find_cell().cell_id == cell.cell_id:
                now = time.monotonic()
                there = now if not cell.ray_pid or own(cell.ray_pid, cell.cell_id) else there
                answered = now if answers(cell) else answered
                if now - there > RAY_GONE_S:
                    raise Unavailable(
                        f"the cell has ended: its Ray cluster (process {cell.ray_pid}) is gone"
                    )
                if now - answered > SILENT_S:
                    left = (
                        ""
                        if cell.ray_pid
                        else "; it was left as it is, `dspark down` takes it down"
                    )
                    raise Unavailable(f"no answer at {cell.endpoint} for {SILENT_S:g} s{left}")
                time.sleep(LOOK_S)
        except KeyboardInterrupt:
            take_down_wholly(say)
        except Unavailable:
            # its own Ray cluster, on this machine; one that it joined may only be unreachable
            if cell.ray_pid:
                take_down_wholly(say, 0.0)
            raise


def _down(args: argparse.Namespace) -> int:
    from deploy.down import take_down

    take_down(say, 0.0 if args.now else args.grace_s)
    return 0


def read_sizes(words: list[str]) -> tuple[dict[str, int], bool | None]:
    """Sizes of `verify` and `draft`, and `autoscale`, as far as they are given. WrongCommand names
    a bad word."""
    given: dict[str, int] = {}
    autoscale: bool | None = None
    for word in words:
        name, _, value = word.partition("=")
        if name in given:
            raise WrongCommand(f"scale: {name} is given twice")
        if name in ("verify", "draft") and value.isascii() and value.isdigit():
            given[name] = int(value)
        elif name == "autoscale" and value in WORDS:
            autoscale = WORDS[value]
        else:
            raise WrongCommand(
                f"scale: {word!r} is not verify=N, draft=N, autoscale=on or autoscale=off"
            )
    return given, autoscale


def _scale(args: argparse.Namespace) -> int:
    from deploy.awaiting import scale

    given, autoscale = read_sizes(args.sizes)
    if not given and autoscale is None:
        raise WrongCommand("scale: say what to change, as in `dspark scale verify=2 draft=3`")
    verifiers, drafters = scale(given.get("verify"), given.get("draft"), autoscale, say)
    print(f"{verifiers} verifiers, {drafters} drafters")
    return 0
