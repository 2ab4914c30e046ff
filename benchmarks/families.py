"""B10: families of drafters on the shipped target, of the same data, steps and budget, side by side.

Each folder is what `python -m benchmarks.ship RUN --out FOLDER` made of a training run: its curve, its calibration,
and its accepted length on prompts of every domain.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.row import Row
from dspark.training import record


def measured(folder: Path) -> tuple[str, dict[str, Any]]:
    """(family, its figures)"""
    report = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    log = record.Log(folder / "training.csv").read()
    held_out = [tau for tau in log["held_out_tau"] if tau == tau]
    temperatures = {
        name: {
            "tau": round(part["mean"]["tau"], 3),
            "tau_without_loops": round(part["mean"]["tau_without_loops"], 3),
            "slot_1": round(sum(row["survival"][0] for row in part["datasets"].values()) / len(part["datasets"]), 3),
        }
        for name, part in report["temperatures"].items()
    }
    return report["family"], {
        "steps": int(log["step"][-1]),
        "held_out_tau": round(held_out[-1], 3),
        "megabytes": round((folder / "model.safetensors").stat().st_size / 1e6, 1),
        **temperatures,
    }


def main(argv: list[str] | None = None) -> int:
    """Prints its row, which claims nothing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.families", description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+", help="of drafters")
    parser.add_argument("--json", action="store_true", help="print one JSON row")
    args = parser.parse_args(argv)
    value = dict(measured(folder) for folder in args.folders)
    return Row("B10", "families of drafters on the shipped target", value, "a table", None).show(as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
