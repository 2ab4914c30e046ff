"""A public load generator for OpenAI endpoints against our HTTP front, beside `dspark bench` (row 6.2).

The generator is guidellm, which lives in an environment of its own: it brings what this project does not need.

    python -m venv /tmp/guidellm && /tmp/guidellm/bin/pip install guidellm
    python -m benchmarks.public_load --guidellm /tmp/guidellm/bin/guidellm

Both ask a synthetic pair whose passes always take the same time, at the same concurrency, for answers of the same
length, one after the other, in turns. Tokens a second are the medians of what each says of itself: tokens that came
while it measured, those of answers that were cut at the end included.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.front_end import TARGET
from benchmarks.http_overhead import synthetic_cell
from benchmarks.row import Row, note
from deploy.processes import LocalCell

BAR = 0.10
STREAMS = 8
TOKENS, PROMPT_TOKENS = 128, 64
SLOWER = 4.0  # passes, so that a generator's own work, on the same two cores, does not decide
DOMAIN = "code"  # a prompt's domain follows from its ids, and the two generators make other prompts


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.public_load", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON row")
    parser.add_argument("--guidellm", required=True, type=Path, metavar="FILE", help="its command")
    parser.add_argument("--seconds", type=int, default=20, help="of each measurement")
    parser.add_argument("--turns", type=int, default=3, help="how often each measures")
    args = parser.parse_args(argv)
    ours: list[float] = []
    theirs: list[float] = []
    details: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, synthetic_cell(Path(name), DOMAIN, SLOWER) as cell:
        for _ in range(args.turns):
            ours.append(_bench(cell, args.seconds))
            rate, details = _guidellm(args.guidellm, cell, Path(name), args.seconds)
            theirs.append(rate)
            note(f"dspark bench {ours[-1]:.1f} tok/s, guidellm {rate:.1f} tok/s, {details}")
    mine, public = statistics.median(ours), statistics.median(theirs)
    value = {
        "streams": STREAMS,
        "dspark_bench_tok_s": round(mine, 1),
        "guidellm_tok_s": round(public, 1),
        "differs_by": round(public / mine - 1, 4),
        "all": {"dspark_bench": [round(each, 1) for each in ours], "guidellm": [round(each, 1) for each in theirs]},
        **details,
    }
    holds = abs(value["differs_by"]) <= BAR and not details["errored"]
    return Row("6.2", "public load generator", value, f"within {BAR:.0%} of dspark bench, no errors", holds).show(
        as_json=args.json
    )


def _bench(cell: LocalCell, seconds: int) -> float:
    words = [f"--endpoint={cell.endpoint}", f"--concurrency={STREAMS}", f"--output-len={TOKENS}", "--json"]
    words += [f"--input-len={PROMPT_TOKENS}", f"--duration={seconds}", "--requests=100000"]
    command = [sys.executable, "-m", "dspark.cli.main", "bench", *words]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10 * seconds + 60)
    return float(json.loads(said.stdout)["points"][0]["tok_s"])


def _guidellm(program: Path, cell: LocalCell, folder: Path, seconds: int) -> tuple[float, dict[str, Any]]:
    """(tokens a second, requests by how they ended and the version)."""
    report = folder / "guidellm.json"
    command = [
        str(program),
        "run",
        f"--backend=kind=openai_http,target={cell.http},request_format=/v1/completions",
        f"--profile=kind=concurrent,streams={STREAMS}",
        f"--constraint=kind=max_duration,seconds={seconds}",
        f"--tokenizer=kind=huggingface_auto,model={TARGET}",
        f"--data=kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={TOKENS}",
        f"--output=kind=json,path={report}",
        "--disable-console",
    ]
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=10 * seconds + 180)
    if done.returncode:
        raise RuntimeError(f"guidellm ended with {done.returncode}: {done.stderr[-2000:]}{done.stdout[-2000:]}")
    return read_report(json.loads(report.read_text(encoding="utf-8")))


def read_report(document: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """From guidellm's JSON: (output tokens a second, how requests ended)."""
    (benchmark,) = document["benchmarks"]
    metrics = benchmark["metrics"]
    totals = metrics["request_totals"]
    rate = metrics["output_tokens_per_second"]["total"]["mean"]
    details = {key: totals[key] for key in ("successful", "errored", "incomplete")}
    return float(rate), details | {"guidellm": document.get("metadata", {}).get("guidellm_version", "")}


if __name__ == "__main__":
    sys.exit(main())
