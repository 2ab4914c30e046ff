"""`dspark train`, `dspark ray` and `dspark conformance`: commands whose work lives elsewhere."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

_OWN_OPTIONS = {"train": 1, "ray": 1, "serve": 2}  # command -> words of it that are parsed here


def add_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Adds `train`, `ray` and `conformance`."""
    train = commands.add_parser(
        "train",
        parents=[shared],
        add_help=False,
        help="train a drafter for a target (dspark train --help lists its stages)",
    )
    train.set_defaults(run=_train)
    ray = commands.add_parser(
        "ray",
        parents=[shared],
        help="run one of Ray's own commands against the cluster of this cell",
        description="dspark ray -- status; dspark ray -- list actors; dspark ray -- logs. Address and token are set. "
        "What asks Ray's dashboard needs a cell of `dspark up --dashboard`, or a cluster that has one.",
    )
    ray.set_defaults(run=_ray)
    conformance = commands.add_parser(
        "conformance",
        parents=[shared],
        help="check a folder of reference checkpoints and outputs",
        description="Runs every case found in DIR, prints one line per case file, exits 1 if any failed.",
    )
    conformance.add_argument("directory", metavar="DIR", type=Path, help="targets beside drafters")
    conformance.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    conformance.set_defaults(run=_conformance)


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """(words parsed here, words of the other program)."""
    if words[:2] in (["ray", "-h"], ["ray", "--help"]):
        return words, []
    kept = _OWN_OPTIONS.get(words[0]) if words else None
    if kept is None or len(words) <= kept or words[kept - 1].startswith("-"):
        return words, []
    return words[:kept], words[kept:]


def _train(args: argparse.Namespace) -> int:
    from dspark.cli.train import run

    return run(args.rest)


def _ray(args: argparse.Namespace) -> int:
    from deploy.ray_environment import run

    return run(args.rest)


def _conformance(args: argparse.Namespace) -> int:
    from dspark.cli.conformance import run

    return int(run(args.directory, args.json))
