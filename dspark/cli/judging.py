"""`dspark calibrate` and `dspark evaluate`: fit a drafter's confidence, measure its acceptance."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dspark.cli.options import (
    RULES,
    folder,
    natural,
    numbers_above_0,
    numbers_from_0,
    positive,
    seed,
)

# options of both commands, by the names that the measurements take
_SHARED = ("temperatures", "new_tokens", "rows", "seed", "out", "keep", "bar")

CALIBRATE = """Fits what a drafter's confidence logits are divided by and moved by, slot by slot
from left to right, on rounds replayed on the target's own answers to held-out prompts: for every
acceptance rule, greedy and sampled requests apart, on drafts cut to their likeliest entries. Every
second prompt is fitted on, the others measure. The result is the drafter's calibration.json, which
drafters read when they start."""
EVALUATE = """Measures accepted length by data set and domain: the first user turn of every row is
asked, blocks are verified whole. FILE is JSONL of {"turns": [text or token ids, ...], "domain":
..., "id": ...}. Confidence gets its calibration error, its ranking, and a sweep of thresholds below
which a block is cut."""


def add_commands(commands: Any) -> None:
    fit = commands.add_parser(
        "calibrate", help="fit a drafter's confidence on held-out rounds", description=CALIBRATE
    )
    add = fit.add_argument
    add("--rules", type=_rules, default=",".join(RULES), help="acceptance rules")
    add("--temperatures", type=numbers_above_0, default="0.7,1", help="of sampled requests")
    more = "more prompts for greedy requests only"
    add("--also-greedy", type=Path, nargs="+", default=(), help=more)
    published = "fit temperatures alone, as published"
    add("--no-offsets", action="store_false", dest="offsets", help=published)
    add("--out", type=folder, help="where calibration.json goes (the drafter's folder)")
    add("--plots", type=folder, help="reliability diagrams before and after, PNG")
    fit.set_defaults(run=_calibrate)
    judge = commands.add_parser(
        "evaluate", help="accepted length of a drafter on data sets", description=EVALUATE
    )
    add = judge.add_argument
    add("--rule", choices=RULES, default="token", help="acceptance rule")
    add("--temperatures", type=numbers_from_0, default="1,0", help="sampling temperatures")
    add("--thresholds", type=numbers_from_0, help="confidences to sweep (0,0.05 .. 0.95)")
    add("--out", type=folder, help="metrics.json and plots")
    judge.set_defaults(run=_evaluate)
    for parser in (fit, judge):
        add = parser.add_argument
        add("data", type=Path, nargs="+", help="JSONL of held-out prompts")
        add("--target", required=True, help="folder or hub id of the target")
        add("--drafter", required=True, help="folder or hub id of the drafter")
        add("--new-tokens", type=positive, default=128, help="tokens of an answer")
        add("--rows", type=natural, default=0, help="most rows of a file; 0: all")
        add("--top-k-cut", type=natural, default=64, help="entries of a draft; 0: all")
        add("--seed", type=seed, default=980406, help="of answers and rounds")
        add("--threads", type=positive, default=1, help="of the processor")
        add("--keep", type=folder, help="keep the target's answers here for next time")
        add("--quiet", action="store_false", dest="bar", help="no progress bar")
        add("--json", action="store_true", help="one JSON object instead of tables")


def _calibrate(args: argparse.Namespace) -> int:
    from dspark.training.calibrate import calibrate, table

    own = {name: getattr(args, name) for name in ("rules", "offsets", "also_greedy", "plots")}
    return _measured(args, calibrate, table, **own)


def _evaluate(args: argparse.Namespace) -> int:
    from dspark.training.evaluate import THRESHOLDS, evaluate, table

    thresholds = THRESHOLDS if args.thresholds is None else args.thresholds
    return _measured(args, evaluate, table, rule=args.rule, thresholds=thresholds)


def _measured(
    args: argparse.Namespace, measure: Callable[..., Any], table: Callable[[Any], str], **own: Any
) -> int:
    """Prints what `measure` finds about the pair, with its own options and those of both commands.
    Raises CheckpointError unless target and drafter fit."""
    import torch

    from dspark.errors import CheckpointError
    from dspark.model.config_file import read_drafter_config
    from dspark.model.location import locate
    from dspark.model.pairing import mismatch, sizes_of
    from dspark.training.metrics import plain

    torch.set_num_threads(args.threads)
    target, drafter = locate(args.target), locate(args.drafter)
    config = read_drafter_config(drafter)
    if (problem := mismatch(config, drafter, target=target, **sizes_of(target))) is not None:
        raise CheckpointError(problem)
    shared = {name: getattr(args, name) for name in _SHARED}
    report = measure(target, drafter, args.data, cut=args.top_k_cut or None, **shared, **own)
    print(json.dumps(plain(report)) if args.json else table(report))
    return 0


def _rules(text: str) -> tuple[str, ...]:
    chosen = tuple(part.strip() for part in text.split(","))
    if not chosen or set(chosen) - set(RULES):
        raise argparse.ArgumentTypeError(f"{text!r}: rules are {', '.join(RULES)}")
    return chosen
