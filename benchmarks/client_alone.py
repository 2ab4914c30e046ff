"""The client library installed alone in an environment of its own: what comes with it, and how long its import takes
(row 6.5).

Makes a virtual environment, installs a copy of this project without extras by pip from the configured registry, and
imports `dspark.client` there a few times, each in a process of its own; the median counts, after a first one that
compiles. With `--endpoint` the lone client also streams an answer from a running coordinator.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from benchmarks.row import Row, note

ROOT = Path(__file__).resolve().parent.parent
BAR_S = 0.5
HEAVY = ("torch", "ray", "transformers", "numpy")
TIMES = 7
_IMPORT = """
import json, sys, time
began = time.perf_counter()
import dspark.client
took = time.perf_counter() - began
print(json.dumps([took, sorted({name.partition(".")[0] for name in sys.modules} & set(%r))]))
"""
_STREAM = """
import sys
from dspark.client import Client
with Client(sys.argv[1]) as client:
    print(len(client.complete([3, 5, 7], max_tokens=16, temperature=0.0, ignore_eos=True).token_ids))
"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client_alone", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON row")
    parser.add_argument("--endpoint", metavar="HOST:PORT", help="a coordinator to stream 16 tokens from")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        value = _measure(Path(folder), args.endpoint)
    lean = not value["heavy_installed"] and not value["heavy_imported"]
    streamed = value.get("streamed_tokens", 16) == 16
    bar = f"no {', no '.join(HEAVY[:2])}; import under {BAR_S} s"
    holds = lean and streamed and value["import_s"] < BAR_S
    return Row("6.5", "client alone", value, bar, holds).show(as_json=args.json)


def _measure(folder: Path, endpoint: str | None) -> dict[str, Any]:
    source, home = folder / "source", folder / "venv"
    shutil.copytree(ROOT / "dspark", source / "dspark", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    venv.create(home, with_pip=True)
    python = str(home / "bin" / "python")
    note("installing")
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(source)], check=True, cwd=folder)
    listed = json.loads(_said([python, "-m", "pip", "list", "--format=json"], folder))
    installed = {one["name"].lower() for one in listed} - {"pip", "setuptools"}
    took, imported = [], set[str]()
    for _ in range(1 + TIMES):
        seconds, heavy = json.loads(_said([python, "-c", _IMPORT % (HEAVY,)], folder))
        took.append(seconds)
        imported |= set(heavy)
    value: dict[str, Any] = {
        "installed": sorted(installed),
        "heavy_installed": sorted(installed & set(HEAVY)),
        "heavy_imported": sorted(imported),
        "import_s": round(statistics.median(took[1:]), 3),
        "first_import_s": round(took[0], 3),
    }
    if endpoint:
        value["streamed_tokens"] = int(_said([python, "-c", _STREAM, endpoint], folder))
    return value


def _said(command: list[str], folder: Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout


if __name__ == "__main__":
    sys.exit(main())
