"""B10: families of drafters on the shipped target, trained on the same data for the same steps, side by side.

Each folder is what `dspark train drafter --out` wrote. Expected accepted length is that of held-out conversations,
the same for all.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.row import Row
from dspark.training import checkpoint, record
from dspark.training.trainer import LOG, STATE


def measured(run: Path) -> tuple[str, dict[str, Any]]:
    """(family, its figures)"""
    facts = checkpoint.read_header(run / f"{STATE}.safetensors")["facts"]
    log, settings = record.Log(run / LOG).read(), facts["settings"]
    told = {int(step): tau for step, tau in zip(log["step"], log["held_out_tau"], strict=True) if tau == tau}
    return settings["family"], {
        "layers": settings["layers"],
        "steps": facts["step"],
        "blocks": facts["step"] * settings["batch"] * settings["anchors"],
        "minutes": round(facts["seconds"] / 60, 1),
        "held_out_tau": {str(step): round(tau, 3) for step, tau in told.items()},
    }


def main(argv: list[str] | None = None) -> int:
    """Prints its row, which claims nothing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.families", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of training runs")
    parser.add_argument("--json", action="store_true", help="print one JSON row")
    args = parser.parse_args(argv)
    value = dict(measured(run) for run in args.runs)
    return Row("B10", "families of drafters on the shipped target", value, "a table", None).show(as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
