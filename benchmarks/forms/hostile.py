"""Forty hostile grammars beside an honest stream, over HTTP: their answers, and the stream's
delays.

The honest stream decodes at temperature 0 under `fixed:3`; its gaps are measured first alone, then
while one hostile request follows the other, then while several are sent at once. Refusals are timed
at their client; a request to come again (429) is no refusal. The verifier compiles at a lower
priority; on one processor core the stream shares it all the same.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from benchmarks.row import Row, note
from dspark.loadgen.summary import spread
from dspark.types import Constraint
from dspark.types import ConstraintKind as KIND

KNOWN = (200, 400, 413, 429)
# bars: seconds of a response that serves nothing, and honest p99 over its p99 alone
TOLD_S, WORSE = 1.0, 1.5
WORDS = {KIND.JSON_SCHEMA: "json", KIND.REGEX: "regex", KIND.GRAMMAR: "grammar"}
AT_ONCE = 8  # requests of the second wave
LONGEST = 8  # tokens of an answer in a hostile form that is served
STRING = {"type": "string"}


def hostile() -> dict[str, Constraint]:
    """Forty grammars that would take very much time or memory to compile."""

    def nested(count: int) -> str:
        return '{"type":"array","items":' * count + "{}" + "}" * count

    def optional(count: int) -> str:
        return json.dumps(
            {"type": "object", "properties": {f"key_{n}": STRING for n in range(count)}}
        )

    def repeated(depth: int, count: int) -> str:
        return "(" * depth + "x" + f"{{1,{count}}})" * depth

    made = {
        **{
            f"lists nested {n} times": (KIND.JSON_SCHEMA, nested(n))
            for n in (200, 500, 1000, 2000, 4000, 9000)
        },
        **{
            f"{n} optional keys": (KIND.JSON_SCHEMA, optional(n))
            for n in (100, 200, 400, 1000, 3000, 6000)
        },
        **{f"repeated {n} deep": (KIND.REGEX, repeated(n, 900) + "y") for n in (2, 3, 4, 6, 9)},
        **{f"{n} parentheses": (KIND.REGEX, "(" * n + "x" + ")" * n) for n in (500, 5_000, 50_000)},
        **{
            f"{n} words": (KIND.REGEX, "|".join(f"word{k}x" for k in range(n)))
            for n in (1_000, 5_000, 20_000)
        },
        **{f"(x+)+ {n} times": (KIND.REGEX, "(x+)+" * n + "y") for n in (1, 20, 400)},
        **{f"(.*x) {n} times": (KIND.REGEX, f"(.*x){{{n}}}") for n in (10, 100, 1000)},
        **{
            f"{n} values": (KIND.JSON_SCHEMA, json.dumps({"enum": list(map(str, range(n)))}))
            for n in (5_000, 20_000)
        },
        "a reference to itself": (KIND.JSON_SCHEMA, '{"$ref":"#"}'),
        "references in a circle": (
            KIND.JSON_SCHEMA,
            '{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}',
        ),
        "a rule that is itself": (KIND.GRAMMAR, "root ::= root"),
        "left recursion": (KIND.GRAMMAR, 'root ::= root root root | root "a" | "a" | ""'),
        "rules without end": (
            KIND.GRAMMAR,
            "\n".join(f"r{n} ::= r{n + 1} r{n + 1}" for n in range(5_000)),
        ),
        "a string of a billion": (KIND.JSON_SCHEMA, '{"type":"string","minLength":1000000000}'),
        "a string to a billion": (KIND.JSON_SCHEMA, '{"type":"string","maxLength":1000000000}'),
        "a list of a million": (
            KIND.JSON_SCHEMA,
            '{"type":"array","items":{"type":"integer"},"minItems":1000000}',
        ),
        "no JSON": (KIND.JSON_SCHEMA, "{" * 100_000),
    }
    return {name: Constraint(*given) for name, given in made.items()}


class HonestStream:
    """Streams one answer after the other in a thread. gaps: seconds between events."""

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
        body = {
            "prompt": "def add(a, b):",
            "max_tokens": 200,
            "temperature": 0.0,
            "stream": True,
            "ignore_eos": True,
        }
        body["speculation"] = {"policy": "fixed:3"}
        with httpx.Client(base_url=self._url, timeout=60.0) as client:
            while not self._over.is_set():
                with client.stream("POST", "/v1/completions", json=body) as events:
                    last = None
                    for _ in events.iter_bytes():
                        now = time.perf_counter()
                        if last is not None:
                            self.gaps.append(now - last)
                        last = now
                        if self._over.is_set():
                            break


def attack(url: str, constraint: Constraint, salt: str = "") -> tuple[int, float, str]:
    """Sends one hostile request; returns (status, seconds, text or error). salt: requests with
    different ones share no cache."""
    body: dict[str, Any] = {"prompt": "x", "max_tokens": LONGEST, "cache_salt": salt}
    body["structured_outputs"] = {WORDS[constraint.kind]: constraint.text}
    began = time.perf_counter()
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60.0)
    said = answer.text if answer.status_code == 200 else answer.json()["error"]["message"]
    return answer.status_code, time.perf_counter() - began, said


def wave(url: str, at_once: int) -> dict[str, Any]:
    """Sends all forty, `at_once` at a time. Returns the counts of their answers, the longest
    refusal, and the longest that was not served."""

    def one(item: tuple[str, Constraint]) -> tuple[str, int, float, str]:
        name, constraint = item
        status, took, said = attack(url, constraint, f"wave-{at_once}")
        note(f"{name}: {status} after {took:.2f} s: {said[:80]}")
        return name, status, took, said

    with ThreadPoolExecutor(at_once) as clients:
        told = list(clients.map(one, hostile().items()))
    counts = Counter(status for _, status, _, _ in told)
    return {
        "refused": counts[400] + counts[413],
        "told_to_come_again": counts[429],
        "served": counts[200],
        "other": [
            f"{name}: {status} {said[:100]}"
            for name, status, _, said in told
            if status not in KNOWN
        ],
        "slowest_refusal_s": round(
            max((took for _, status, took, _ in told if status in (400, 413)), default=0.0), 2
        ),
        "slowest_not_served_s": round(
            max((took for _, status, took, _ in told if status != 200), default=0.0), 2
        ),
    }


def row(url: str, alone_s: float) -> Row:
    attack(url, Constraint(KIND.REGEX, "x"))  # starts the compiler
    with HonestStream(url) as calm:
        time.sleep(alone_s)
    waves, holds = dict[str, dict[str, Any]](), True
    for name, count in (("one", 1), ("several", AT_ONCE)):
        with HonestStream(url) as hurt:
            time.sleep(2.0)
            waves[name] = wave(url, count)
        alone, beside = spread(calm.gaps) or {}, spread(hurt.gaps) or {}
        waves[name] |= {
            f"honest_{each}_ms": {"alone": round(alone[each], 1), "beside": round(beside[each], 1)}
            for each in ("p99", "p50")
        }
        holds &= not waves[name]["other"] and waves[name]["slowest_not_served_s"] <= TOLD_S
        holds &= beside["p99"] <= WORSE * alone["p99"]
    bar = f"served, or told what becomes of it within {TOLD_S:g} s; honest p99 <= {WORSE:g} x alone"
    name = "hostile grammars beside an honest stream"
    return Row("forms-hostile", name, {**waves, "at_once": AT_ONCE}, bar, holds)
