"""What HTTP costs beside gRPC: tokens a second of the same load through both doors of one coordinator, at 1 and at 64
streams (row 6.6).

A synthetic pair whose passes always take the same time, so that what differs is the doors and nothing else; text both
ways. Clients are this package's own for both, in one process, and share the cores with the cell. The doors take turns,
first one first and then the other, and every turn is a pair; the figure is the median of the pairs' ratios. Beside it
stands the processor time of the coordinator per token. `--shipped` measures on the shipped pair instead, where the
models' own work takes most of the processor.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from tokenizers import Tokenizer

from benchmarks.front_end import PROMPT, TARGET, cpu_seconds
from benchmarks.load import run as loop
from benchmarks.load.answer import Endpoint
from benchmarks.load.grpc_endpoint import GrpcEndpoint
from benchmarks.load.openai_endpoint import OpenAiEndpoint, OpenAiOptions
from benchmarks.load.prompts import Question
from benchmarks.pair import shipped_pair
from benchmarks.real_cell import POOL_TOKENS
from benchmarks.row import Row, note
from benchmarks.synthetic_cell import FLAT
from deploy.processes import LocalCell
from dspark.client.request import Sampling

BAR = 0.05
STREAMS = (1, 64)
TOKENS = 256  # of an answer
SETTLE_S = 1.5
DOOR = {"http": "127.0.0.1:0"}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http_overhead", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON row")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter measurements")
    parser.add_argument("--shipped", action="store_true", help="the shipped pair instead of the synthetic one")
    args = parser.parse_args(argv)
    pairs, seconds = (2, 4.0) if args.quick else (4, 6.0)
    with tempfile.TemporaryDirectory() as folder, _cell(args, Path(folder)) as cell:
        value = asyncio.run(_measure(cell, pairs, seconds))
    losses = [value[f"streams_{count}"]["http_costs"] for count in STREAMS]
    bar = f"HTTP costs at most {BAR:.0%} of the tokens a second of gRPC at {STREAMS[0]} and {STREAMS[1]} streams"
    name = "HTTP overhead" + (", shipped pair" if args.shipped else "")
    return Row("6.6", name, value, bar, max(losses) <= BAR).show(as_json=args.json)


def _cell(args: argparse.Namespace, folder: Path) -> LocalCell:
    if not args.shipped:
        return synthetic_cell(folder)
    pair = shipped_pair()
    return LocalCell(pair.target, pair.drafter, coordinator=DOOR, verify={"kv_tokens": 1 << 16})


def synthetic_cell(folder: Path, domain: str = "", slower: float = 1.0) -> LocalCell:
    """The flat pair over the tiny target's vocabulary, so that every id is text, with an HTTP front.

    domain: the only one there is, so that no prompt is easier than another; empty: as the file has them.
    slower: times what the file's passes take.
    """
    document = yaml.safe_load(FLAT.read_text(encoding="utf-8"))
    for role in ("verify", "draft"):
        document[role]["ms"] = [slower * each for each in document[role]["ms"]]
    if domain:
        document["domains"] = {domain: document["domains"][domain]}
    document["vocabulary"] = Tokenizer.from_file(str(TARGET / "tokenizer.json")).get_vocab_size()
    path = folder / "pair.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    synthetic = {"engine": "synthetic", "synthetic": path}
    return LocalCell(
        "",
        "",
        coordinator={"target": TARGET, **DOOR},
        verify={**synthetic, "kv_tokens": POOL_TOKENS},
        draft={**synthetic, "context_tokens": POOL_TOKENS},
    )


async def _measure(cell: LocalCell, pairs: int, seconds: float) -> dict[str, Any]:
    pid = cell.children["coordinator/0"].pid
    with contextlib.closing(cell.client()) as client:
        model = client.model_info().model
    options = Sampling(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
    grpc = GrpcEndpoint(cell.endpoint, options)
    http = OpenAiEndpoint(OpenAiOptions(f"{cell.http}/v1", model, max_tokens=TOKENS))
    value: dict[str, Any] = {}
    try:
        for streams in STREAMS:
            costs: list[float] = []
            rates: dict[str, list[float]] = {"grpc": [], "http": []}
            cpu: dict[str, list[float]] = {"grpc": [], "http": []}
            for number in range(pairs):
                doors: list[tuple[str, Endpoint]] = [("grpc", grpc), ("http", http)]
                for name, door in doors if number % 2 == 0 else reversed(doors):
                    spent = cpu_seconds(pid)
                    rate, tokens = await _rate(door, streams, seconds)
                    rates[name].append(rate)
                    cpu[name].append(1e6 * (cpu_seconds(pid) - spent) / max(tokens, 1))
                costs.append(1 - rates["http"][-1] / rates["grpc"][-1])
                note(f"{streams} streams: grpc {rates['grpc'][-1]:.0f}, http {rates['http'][-1]:.0f} tok/s")
            value[f"streams_{streams}"] = {
                "grpc_tok_s": round(statistics.median(rates["grpc"]), 1),
                "http_tok_s": round(statistics.median(rates["http"]), 1),
                "http_costs": round(statistics.median(costs), 4),
                "all_costs": [round(cost, 4) for cost in costs],
                "coordinator_cpu_us_per_token": {name: round(statistics.median(each), 1) for name, each in cpu.items()},
            }
    finally:
        await grpc.close()
    return value


async def _rate(door: Endpoint, streams: int, seconds: float) -> tuple[float, int]:
    """(tokens a second inside the window, tokens in all) of one turn. Raises when a request failed."""
    plan = loop.Plan(concurrency=streams, duration_s=SETTLE_S + seconds)
    outcome = await loop.run(door, _questions(), plan, lambda *_: None)
    failed = [answer.error for answer in outcome.answers if answer.error not in ("", loop.CUT)]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed: {failed[0]}")
    opens = outcome.opened + SETTLE_S
    said = [pair for answer in outcome.answers for pair in zip(answer.times, answer.counts, strict=True)]
    return sum(count for when, count in said if when >= opens) / seconds, sum(count for _, count in said)


def _questions() -> Iterator[Question]:
    for number in itertools.count():
        yield Question(f"{PROMPT} {number}", max_tokens=TOKENS)


if __name__ == "__main__":
    sys.exit(main())
