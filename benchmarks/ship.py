"""Makes the shipped drafter's folder from a training run: `python -m benchmarks.ship RUN`.

RUN is the folder of `dspark train drafter --out`, finished or still running (then its last saved
state is taken). Its drafter loses the tables that are the target's, is calibrated for every
acceptance rule on prompts of its own, measured on the prompts of every domain, and gets a card with
what it was trained on, its curve, and its figures.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.row import note
from benchmarks.ship_card import card
from dspark import shipped
from dspark.errors import ConfigError, DsparkError
from dspark.loadgen.prompts import BUILT_IN, DOMAINS
from dspark.model.checkpoint import load_target, save_drafter
from dspark.model.formats.convert import without_tables
from dspark.model.location import locate
from dspark.model.weights_file import read_file
from dspark.runtime.config import load_config
from dspark.training import checkpoint, metrics, record
from dspark.training.calibrate import calibrate
from dspark.training.evaluate import evaluate, table
from dspark.training.settings import Settings
from dspark.training.shape import make_drafter
from dspark.training.trainer import CURVES, LOG, MODEL, STATE

OUT = Path(__file__).resolve().parent.parent / "models" / shipped.DRAFTER
TEMPERATURES = (0.0, 0.7, 1.0)
PROMPTS = Path(__file__).resolve().parent / "prompts" / "calibrate" / "mixed.jsonl"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ship", description=__doc__)
    add = parser.add_argument
    add("run", type=Path, help="folder of a training run")
    add("--out", type=Path, default=OUT, help="folder to replace (the shipped one)")
    add("--target", default=shipped.TARGET, help=f"folder, name or hub id ({shipped.TARGET})")
    add("--tokens", type=int, default=64, help="of an answer (64)")
    add("--rows", type=int, default=8, help="prompts of a domain that are measured; 0: all (8)")
    add(
        "--before", type=int, default=0, help="blocks that the weights it started from had seen (0)"
    )
    add("--prompts", type=Path, default=PROMPTS, help="to calibrate on")
    add("--datasets", type=Path, nargs="+", help="to measure on (a file of every domain)")
    add("--keep", type=Path, help="folder in which the target's answers stay, for the next drafter")
    add("--threads", type=int, default=1, help="of the processor (1)")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    began = time.monotonic()
    try:
        ship(args)
    except DsparkError as error:
        print(f"ship: {error}", file=sys.stderr)
        return 1
    print(f"{args.out}: written in {time.monotonic() - began:.0f} s")
    return 0


def ship(args: argparse.Namespace) -> None:
    """Makes the folder beside `out` and replaces `out` when it is complete."""
    run, out, target = args.run, args.out, locate(args.target)
    datasets = args.datasets or [BUILT_IN / f"{domain}.jsonl" for domain in DOMAINS]
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
        folder, measured = Path(scratch) / out.name, Path(scratch) / "measured"
        facts = _facts(run)
        without_tables(
            _drafter(run, facts, Path(scratch)), folder, target=target, dtype=torch.bfloat16
        )
        note("calibrating")
        fits = calibrate(
            target,
            folder,
            [args.prompts],
            temperatures=[1.0],
            new_tokens=args.tokens,
            plots=folder,
            keep=args.keep,
        )
        note("measuring")
        report = evaluate(
            target,
            folder,
            datasets,
            temperatures=TEMPERATURES,
            new_tokens=args.tokens,
            rows=args.rows,
            out=measured,
            keep=args.keep,
        )
        print(table(report), flush=True)
        log = record.StepLog(run / LOG)
        shutil.copyfile(log.path, folder / "training.csv")
        record.draw(log, CURVES, folder / "training.png")
        shutil.copyfile(measured / "acceptance.png", folder / "acceptance.png")
        told = {
            "training": facts,
            "calibration": fits,
            "evaluation": report,
            "log": log.read(),
            "before": args.before,
        }
        (folder / "README.md").write_text(card(told, folder), encoding="utf-8")
        (folder / "metrics.json").write_text(
            json.dumps(metrics.plain(_without_paths(report))) + "\n", encoding="utf-8"
        )
        shutil.rmtree(out, ignore_errors=True)
        folder.rename(out)


def _facts(run: Path) -> dict[str, Any]:
    """Steps done, the settings, and what the run was made with."""
    state = run / STATE
    if not state.is_file():
        raise ConfigError(f"{run}: no {state.name}, which `dspark train drafter --out` writes")
    facts: dict[str, Any] = checkpoint.read_header(state)["facts"]
    return facts


def _drafter(run: Path, facts: dict[str, Any], scratch: Path) -> Path:
    """The drafter of a finished run, or that of an unfinished run's last state."""
    made = load_config(Settings, section="train", flags=facts["settings"])
    if facts["step"] >= made.steps and (run / MODEL).is_dir():
        return run / MODEL
    note(f"the run goes on; this is its state after {facts['step']} steps")
    drafter = make_drafter(load_target(made.target), made)
    trained = {
        name.removeprefix("model/"): tensor
        for name, tensor in read_file(run / STATE).items()
        if name.startswith("model/")
    }
    wanted = {name for name, parameter in drafter.named_parameters() if parameter.requires_grad}
    if trained.keys() != wanted:
        raise ConfigError(f"{run}: its state holds other weights than its settings ask for")
    drafter.load_state_dict(trained, strict=False)  # the rest are the target's tables
    save_drafter(drafter, scratch / "whole", dtype=torch.float32)
    return scratch / "whole"


def _without_paths(report: dict[str, Any]) -> dict[str, Any]:
    """The report for publication: without folders of the machine that it was measured on."""
    return {
        name: value
        for name, value in report.items()
        if name not in ("target", "drafter", "seconds")
    }


if __name__ == "__main__":
    sys.exit(main())
