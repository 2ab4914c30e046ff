"""`dspark calibrate` and `dspark evaluate`: fit a drafter's confidence, measure its acceptance."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from dspark.cli.options import natural, numbers, positive

RULES = ("token", "block", "coupled")

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
    _pair(fit)
    fit.add_argument(
        "--rules", type=_rules, default=RULES, metavar="R,R", help="acceptance rules (all three)"
    )
    fit.add_argument(
        "--temperatures",
        type=numbers,
        default=[0.7, 1.0],
        metavar="T,T",
        help="of sampled requests (0.7,1)",
    )
    fit.add_argument(
        "--also-greedy",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="more prompts for greedy requests only",
    )
    fit.add_argument(
        "--no-offsets", action="store_true", help="fit temperatures alone, as published"
    )
    fit.add_argument(
        "--out", type=Path, metavar="DIR", help="where calibration.json goes (the drafter's folder)"
    )
    fit.add_argument(
        "--plots", type=Path, metavar="DIR", help="reliability diagrams before and after, PNG"
    )
    fit.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep the target's answers here, for the next run"
    )
    fit.set_defaults(run=_calibrate)
    judge = commands.add_parser(
        "evaluate", help="accepted length of a drafter on data sets", description=EVALUATE
    )
    _pair(judge)
    judge.add_argument(
        "--rule", choices=RULES, default="token", help="acceptance rule (token, as published)"
    )
    judge.add_argument(
        "--temperatures",
        type=partial(numbers, zero=True),
        default=[1.0, 0.0],
        metavar="T,T",
        help="sampling temperatures (1,0)",
    )
    judge.add_argument(
        "--thresholds",
        type=partial(numbers, zero=True),
        metavar="C,C",
        help="confidences to sweep (0,0.05 .. 0.95)",
    )
    judge.add_argument("--out", type=Path, metavar="DIR", help="metrics.json and plots")
    judge.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="keep the target's answers here, for the next drafter",
    )
    judge.set_defaults(run=_evaluate)


def _pair(parser: argparse.ArgumentParser) -> None:
    """Adds the options that both commands have."""
    parser.add_argument(
        "data", type=Path, nargs="+", metavar="FILE", help="JSONL of held-out prompts"
    )
    parser.add_argument(
        "--target", required=True, metavar="PATH", help="folder or hub id of the target"
    )
    parser.add_argument(
        "--drafter",
        required=True,
        metavar="PATH",
        help="folder or hub id of the drafter, any family",
    )
    parser.add_argument(
        "--new-tokens", type=positive, default=128, metavar="N", help="tokens of an answer (128)"
    )
    parser.add_argument(
        "--rows", type=natural, default=0, metavar="N", help="most rows of one file; 0: all (0)"
    )
    parser.add_argument(
        "--top-k-cut", type=natural, default=64, metavar="K", help="entries of a draft; 0: all (64)"
    )
    parser.add_argument("--seed", type=int, default=980406, help="of answers and rounds (980406)")
    parser.add_argument(
        "--threads", type=positive, default=1, metavar="N", help="of the processor (1)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object on stdout instead of tables"
    )


def _calibrate(args: argparse.Namespace) -> int:
    from dspark.training import calibrate
    from dspark.training.metrics import plain

    report = calibrate.calibrate(
        *_given(args), args.data, rules=args.rules, temperatures=args.temperatures,
        offsets=not args.no_offsets,
        also_greedy=args.also_greedy, out=args.out, plots=args.plots, keep=args.keep,
        **_shared(args),
    )  # fmt: skip
    print(json.dumps(plain(report)) if args.json else calibrate.table(report))
    return 0


def _evaluate(args: argparse.Namespace) -> int:
    from dspark.training import evaluate
    from dspark.training.metrics import plain

    thresholds = evaluate.THRESHOLDS if args.thresholds is None else tuple(args.thresholds)
    report = evaluate.evaluate(
        *_given(args), args.data, rule=args.rule, temperatures=args.temperatures,
        thresholds=thresholds, out=args.out,
        keep=args.keep, **_shared(args),
    )  # fmt: skip
    print(json.dumps(plain(report)) if args.json else evaluate.table(report))
    return 0


def _given(args: argparse.Namespace) -> tuple[Path, Path]:
    """Folders of the target and of the drafter. Raises CheckpointError unless they fit."""
    import torch

    from dspark.errors import CheckpointError
    from dspark.model.config_file import read_drafter_config
    from dspark.model.location import locate
    from dspark.model.pairing import mismatch, sizes_of

    torch.set_num_threads(args.threads)
    target, drafter = locate(args.target), locate(args.drafter)
    config = read_drafter_config(drafter)
    if (problem := mismatch(config, drafter, target=target, **sizes_of(target))) is not None:
        raise CheckpointError(problem)
    return target, drafter


def _shared(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "new_tokens": args.new_tokens,
        "cut": args.top_k_cut or None,
        "rows": args.rows,
        "seed": args.seed,
        "bar": not args.quiet,
    }


def _rules(text: str) -> tuple[str, ...]:
    chosen = tuple(part.strip() for part in text.split(","))
    if not chosen or set(chosen) - set(RULES):
        raise argparse.ArgumentTypeError(f"{text!r}: rules are {', '.join(RULES)}")
    return chosen
