"""Two builds whose law is wrong by one line, which the test has to find: `python -m tests.wire_law.broken`.

Each runs from a copy of the packages with that line changed, in processes of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("dspark", "coordinator", "draft_service", "verify_service", "deploy", "tests/wire_law")
FOUND = 1e-6


@dataclass(frozen=True)
class Build:
    """One line of one file, and where it shows."""

    name: str
    file: str
    right: str
    wrong: str
    setting: str


BUILDS = (
    Build(
        "q sent that was not sampled from",
        "dspark/decoding/sampling.py",
        "draw(probs.double(), u).unsqueeze(-1)",
        "draw(probs.double().sqrt(), u).unsqueeze(-1)",
        "block, fixed:3, T=1",
    ),
    Build(
        "the bonus token drawn from p, not from what is left of it",
        "dspark/decoding/ratio.py",
        "law = residual(last, slots.dense(rejected, last))",
        "law = last",
        "token, fixed:3, T=1",
    ),
)


def sampled_p(build: Build, draws: int) -> float:
    """The smallest corrected p-value of the build's setting."""
    with tempfile.TemporaryDirectory(prefix="dspark-broken-") as folder:
        copy = Path(folder)
        for package in PACKAGES:
            shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
        path = copy / build.file
        text = path.read_text(encoding="utf-8")
        if text.count(build.right) != 1:
            raise SystemExit(f"{build.name}: {build.file} holds the line {text.count(build.right)} times, not once")
        path.write_text(text.replace(build.right, build.wrong), encoding="utf-8")
        command = [sys.executable, "-m", "tests.wire_law", "--json", f"--draws={draws}", f"--only={build.setting}"]
        run = subprocess.run(
            command, cwd=copy, env=os.environ | {"PYTHONPATH": str(copy)}, stdout=subprocess.PIPE, text=True
        )
    lines = run.stdout.splitlines()
    if not lines:
        raise SystemExit(f"{build.name}: no row, exit {run.returncode}")
    return float(json.loads(lines[-1])["value"]["p_corrected"])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wire_law.broken", description=__doc__)
    parser.add_argument("--draws", type=int, default=40_000, metavar="N", help="answers of a build (40000)")
    args = parser.parse_args(argv)
    caught = True
    for build in BUILDS:
        p = sampled_p(build, args.draws)
        caught &= p < FOUND
        print(json.dumps({"build": build.name, "row": "wire-law", "p": p, "caught": p < FOUND}), flush=True)
    return 0 if caught else 1


if __name__ == "__main__":
    sys.exit(main())
