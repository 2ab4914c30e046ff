"""A newcomer's path: README's commands, with a second prompt under a fixed policy, hints and logs besides.

Ends with what Prometheus would read: every target of `dspark sd` is fetched, and every metric that the Grafana
dashboard asks for must be on the pages. Measured from the first command to the last; typing is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from benchmarks.row import Row, note

DASHBOARD = Path(__file__).resolve().parent.parent / "deploy/observability/grafana/dashboards/dspark.json"
PATH = (
    ("doctor",),
    ("up",),
    ("generate", "def fibonacci(n):", "--max-tokens", "64", "--label", "first"),
    ("scale", "draft=2"),
    ("generate", "The module provides", "--max-tokens", "64", "--policy", "fixed:3", "--label", "second"),
    ("status", "--hints"),
    ("top", "--once"),
    ("logs", "-n", "3"),
    ("sd",),
)
MOST_S = 600.0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.newcomer", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    args = parser.parse_args(argv)
    took: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="dspark-newcomer-") as home:
        os.environ["DSPARK_HOME"] = home
        try:
            for words in PATH:
                began = time.monotonic()
                said = _dspark(*words)
                took[" ".join(words)] = round(time.monotonic() - began, 1)
                note(f"$ dspark {' '.join(words)}   ({took[' '.join(words)]} s)\n{said}")
            targets = [target for group in json.loads(said) for target in group["targets"]]
            absent = _asked_for() - set().union(*(_names(target) for target in targets))
        finally:
            _dspark("down")
    value = {
        "seconds": round(sum(took.values()), 1),
        "commands": took,
        "targets": len(targets),
        "metrics_absent": sorted(absent),
    }
    holds = not absent and len(targets) == 4 and sum(took.values()) < MOST_S
    bar = "under 600 s of waiting in all, every metric of the dashboard there, four targets"
    return Row("6.8", "a newcomer's path", value, bar, holds).show(as_json=args.json)


def _dspark(*words: str) -> str:
    command = [sys.executable, "-m", "dspark.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_S)
    if done.returncode:
        raise SystemExit(f"dspark {' '.join(words)}: {done.stderr}")
    return done.stdout


def _asked_for() -> set[str]:
    """Metrics that the dashboard's queries name."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    queries = " ".join(target["expr"] for panel in panels for target in panel.get("targets", ()))
    return {re.sub("_(total|bucket|sum|count)$", "", name) for name in re.findall(r"dspark_\w+", queries)}


def _names(target: str) -> set[str]:
    with urllib.request.urlopen(f"http://{target}/metrics", timeout=10) as reply:
        page = reply.read().decode()
    return {re.sub("_total$", "", name) for name in re.findall(r"^# TYPE (\S+)", page, re.MULTILINE)}


if __name__ == "__main__":
    sys.exit(main())
