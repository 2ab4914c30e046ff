"""Pools that change under a running load, through the commands a user types, on a local Ray cluster.

by hand: 16 streams go on without a break while drafters go 1 -> 3 -> 0 -> 1 and verifiers 1 -> 2 -> 1. Every answer
under `coupled` is compared, id by id, with the one the same request got from an undisturbed cell.

by load: a cell of synthetic workers whose drafter is slow is left to the autoscaler; the number of drafters is noted
twice a second, and compared with what `dspark status --hints` says.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.pair import DOMAINS, Pair, add_arguments, chosen
from benchmarks.row import Row, note
from dspark.client import AsyncClient, Client
from dspark.errors import DsparkError

STREAMS = 16
STEPS = ("draft=3", "draft=0", "draft=1", "verify=2", "verify=1")
SLOW_DRAFT = Path(__file__).resolve().parent / "synthetic" / "slow_draft.yaml"
AUTOSCALE = {"MAX_DRAFTERS": 6, "UP_AFTER_S": 3, "DOWN_AFTER_S": 15, "COOL_DOWN_S": 8, "LOOK_S": 1, "WINDOW_S": 6}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pools", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--tokens", type=int, default=160, help="length of each answer by hand")
    parser.add_argument("--watch-s", type=float, default=120.0, help="how long the autoscaler is watched")
    parser.add_argument("--only", choices=["hand", "load"], help="one of the two parts")
    args = parser.parse_args(argv)
    value: dict[str, object] = {}
    holds = True
    if args.only != "load":
        value["by_hand"], fine = by_hand(chosen(args), args.tokens)
        holds &= fine
    if args.only != "hand":
        value["by_load"], fine = by_load(args.watch_s)
        holds &= fine
    bar = "no request fails, ids unchanged under coupled; the autoscaler reaches the hint and stays"
    return Row("6.4", "pools change under load", value, bar, holds).show(as_json=args.json)


def dspark(*words: str) -> str:
    """The command, as a user runs it; what it printed."""
    command = [sys.executable, "-m", "dspark.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    if done.returncode:
        raise SystemExit(f"dspark {' '.join(words)}: {done.stderr}")
    return done.stdout


@contextmanager
def cell(*options: str, environ: dict[str, str] | None = None) -> Iterator[None]:
    """A cell of its own, in a state folder of its own."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="dspark-pools-") as home:
        os.environ.update({"DSPARK_HOME": home, **(environ or {})})
        try:
            dspark("up", *options, "--http", "none")
            yield
        finally:
            dspark("down", "--now")
            os.environ.clear()
            os.environ.update(before)


@dataclass
class Load:
    """Streams that ask again as soon as they were answered. answers: ids by request; failed: what went wrong."""

    answers: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    failed: Counter[str] = field(default_factory=Counter)
    done: int = 0

    async def run(self, requests: list[dict[str, Any]], until: asyncio.Event) -> None:
        async with AsyncClient() as client:
            await asyncio.gather(*(self._stream(client, index, ask, until) for index, ask in enumerate(requests)))

    async def _stream(self, client: AsyncClient, index: int, ask: dict[str, Any], until: asyncio.Event) -> None:
        while not until.is_set():
            try:
                answer = await client.complete(timeout=300, **ask)
            except DsparkError as error:
                self.failed[f"{type(error).__name__}: {error}"] += 1
                await asyncio.sleep(0.5)
                continue
            self.answers.setdefault(index, []).append(tuple(answer.token_ids))
            self.done += 1


def by_hand(pair: Pair, tokens: int) -> tuple[dict[str, object], bool]:
    """The steps, one after the other, each with at least one answer per stream around it."""
    texts = [prompt for domain in DOMAINS for prompt in pair.prompts(domain, -(-STREAMS // len(DOMAINS)))][:STREAMS]
    fixed = {"max_tokens": tokens, "temperature": 1.0, "rule": "coupled", "ignore_eos": True, "policy": "fixed:3"}
    requests: list[dict[str, Any]] = [
        {"prompt": pair.token_ids(text), "seed": seed, **fixed} for seed, text in enumerate(texts)
    ]
    took: dict[str, float] = {}

    async def change(load: Load, until: asyncio.Event) -> None:
        try:
            await _more(load)
            for step in STEPS:
                began = time.monotonic()
                said = await asyncio.to_thread(dspark, "scale", step)
                took[f"{len(took)}: {step}"] = round(time.monotonic() - began, 1)
                note(f"{step}: {said.strip()} after {took[f'{len(took) - 1}: {step}']} s; {load.done} answers")
                await _more(load)
        finally:
            until.set()

    async def disturbed() -> Load:
        load, until = Load(), asyncio.Event()
        await asyncio.gather(load.run(requests, until), change(load, until))
        return load

    with cell("--target", str(pair.target), "--drafter", str(pair.drafter)):
        with Client() as client:
            calm = [tuple(client.complete(timeout=300, **ask).token_ids) for ask in requests]
        load = asyncio.run(disturbed())
        with Client() as client:
            totals = client.status().totals
    different = sum(ids != calm[index] for index, all_ids in load.answers.items() for ids in all_ids)
    value: dict[str, object] = {
        "streams": STREAMS,
        "tokens": tokens,
        "answers": load.done,
        "failed": dict(load.failed),
        "different_ids": different,
        "near_ties": totals.get("dspark_coupled_near_ties_total", 0.0),
        "handovers": totals.get("dspark_handovers_total", 0.0),
        "losses": totals.get("dspark_worker_losses_total", 0.0),
        "scale_s": took,
    }
    return value, not load.failed and not different and load.done >= STREAMS * (len(STEPS) + 1)


async def _more(load: Load) -> None:
    """Until every stream has been answered once more."""
    wanted = {index: len(load.answers.get(index, ())) + 1 for index in range(STREAMS)}
    while any(len(load.answers.get(index, ())) < count for index, count in wanted.items()):
        if sum(load.failed.values()) > 10 * STREAMS:
            return
        await asyncio.sleep(0.1)


def by_load(watch_s: float) -> tuple[dict[str, object], bool]:
    """Sizes over time under 16 streams, then without any."""
    ask = {"prompt": list(range(5, 21)), "max_tokens": 400, "temperature": 0.0, "ignore_eos": True, "policy": "fixed:3"}
    sizes: list[tuple[float, int]] = []
    environ = {f"DSPARK_AUTOSCALE__{key}": str(each) for key, each in AUTOSCALE.items()}

    async def watch(until: asyncio.Event) -> None:
        began = time.monotonic()
        with Client() as client:
            while (now := time.monotonic() - began) < watch_s:
                drafters = len({name for lane in client.status().lanes for name in lane.drafters})
                if not sizes or sizes[-1][1] != drafters:
                    sizes.append((round(now, 1), drafters))
                    note(f"{now:6.1f} s: {drafters} drafters")
                await asyncio.sleep(0.5)
        hinted.update(json.loads(dspark("status", "--hints", "--streams", str(STREAMS), "--json"))["hint"] or {})
        until.set()

    async def both() -> Load:
        load, until = Load(), asyncio.Event()
        await asyncio.gather(load.run([ask] * STREAMS, until), watch(until))
        return load

    hinted: dict[str, Any] = {}
    with cell("--engine", "synthetic", "--synthetic", str(SLOW_DRAFT), "--autoscale", environ=environ):
        load = asyncio.run(both())
    reached = [drafters for _, drafters in sizes]
    turns = sum((b - a) * (c - b) < 0 for a, b, c in zip(reached, reached[1:], reached[2:], strict=False))
    value: dict[str, object] = {
        "drafters": sizes,
        "hint": hinted.get("sentence"),
        "turns": turns,
        "answers": load.done,
        "failed": dict(load.failed),
    }
    near = abs(reached[-1] - hinted.get("drafters", -9)) <= 1
    return value, near and not turns and not load.failed


if __name__ == "__main__":
    sys.exit(main())
