"""Forty hostile grammars beside an honest stream, over HTTP: what they are answered, and what the stream feels.

The honest stream decodes at temperature 0 under `fixed:3`; its gaps are measured first alone, then while one hostile
request follows the other from a tenant of its own. Refusals are timed as their client sees them. The verifier compiles
at a lower priority; on one processor core the stream shares it all the same.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks.forms import hostile
from benchmarks.row import Row, note
from deploy.processes import ProcessCell
from dspark import shipped
from dspark.types import Constraint, ConstraintKind

REFUSED_S, WORSE = 1.0, 1.5  # bars: of a refusal, and of the honest p99 against alone
WORDS = {ConstraintKind.JSON_SCHEMA: "json", ConstraintKind.REGEX: "regex", ConstraintKind.GRAMMAR: "grammar"}
LONGEST = 8  # tokens of an answer in a hostile form that is served


class HonestStream:
    """Streams one answer after the other; gaps between events, in ms."""

    def __init__(self, url: str) -> None:
        self.gaps: list[float] = []
        self._url, self._over = url, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> HonestStream:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        body = {"prompt": "def add(a, b):", "max_tokens": 200, "temperature": 0.0, "stream": True, "ignore_eos": True}
        body["speculation"] = {"policy": "fixed:3"}
        with httpx.Client(base_url=self._url, timeout=60.0) as client:
            while not self._over.is_set():
                with client.stream("POST", "/v1/completions", json=body) as events:
                    last = None
                    for _ in events.iter_bytes():
                        now = time.perf_counter()
                        if last is not None:
                            self.gaps.append(1e3 * (now - last))
                        last = now
                        if self._over.is_set():
                            break


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


def attack(url: str, constraint: Constraint) -> tuple[int, float, str]:
    """(status, seconds, what was said) of one hostile request."""
    body: dict[str, Any] = {"prompt": "x", "max_tokens": LONGEST}
    body["structured_outputs"] = {WORDS[constraint.kind]: constraint.text}
    began = time.perf_counter()
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60.0)
    said = answer.text if answer.status_code == 200 else answer.json()["error"]["message"]
    return answer.status_code, time.perf_counter() - began, said


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forms_hostile", description=__doc__)
    parser.add_argument("--target", type=Path, help="another pair than the shipped one")
    parser.add_argument("--drafter", type=Path)
    parser.add_argument("--alone", type=float, default=20.0, metavar="S", help="how long the stream is measured alone")
    parser.add_argument("--json", action="store_true", help="print one JSON row")
    args = parser.parse_args(argv)
    pair = (args.target or shipped.TARGET, args.drafter or shipped.drafter())
    refused, served, other, slowest = 0, 0, list[str](), 0.0
    with ProcessCell(*pair, coordinator={"http": "127.0.0.1:0"}) as cell:
        url = cell.children["coordinator/0"].http
        attack(url, Constraint(ConstraintKind.REGEX, "x"))  # starts the compiler
        with HonestStream(url) as calm:
            time.sleep(args.alone)
        with HonestStream(url) as hurt:
            time.sleep(2.0)
            for name, constraint in hostile().items():
                status, took, said = attack(url, constraint)
                refused, served = refused + (status in (400, 413)), served + (status == 200)
                if status not in (200, 400, 413):
                    other.append(f"{name}: {status} {said[:100]}")
                slowest = max(slowest, took if status != 200 else 0.0)
                note(f"{name}: {status} after {took:.2f} s: {said[:80]}")
    value = {
        "refused": refused,
        "served": served,
        "other": other,
        "slowest_refusal_s": round(slowest, 2),
        "honest_p99_ms": {"alone": round(p99(calm.gaps), 1), "beside": round(p99(hurt.gaps), 1)},
        "honest_p50_ms": {
            "alone": round(statistics.median(calm.gaps), 1),
            "beside": round(statistics.median(hurt.gaps), 1),
        },
        "events": [len(calm.gaps), len(hurt.gaps)],
    }
    holds = not other and slowest <= REFUSED_S and p99(hurt.gaps) <= WORSE * p99(calm.gaps)
    bar = f"refused within {REFUSED_S:g} s or served; honest p99 <= {WORSE:g} x alone"
    return Row("forms-hostile", "hostile grammars beside an honest stream", value, bar, holds).show(as_json=args.json)


if __name__ == "__main__":
    raise SystemExit(main())
