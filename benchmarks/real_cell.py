"""Real services around synthetic engines, and one measured point of load on them: the same requests the simulator
makes, number for number, so that the same blocks are drafted and the same tokens committed.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from coordinator.simulation.load import shape
from coordinator.simulation.scenario import Scenario
from deploy.processes import ProcessCell
from dspark.client.request import Options
from dspark.loadgen import run as loop
from dspark.loadgen.grpc_endpoint import GrpcEndpoint
from dspark.loadgen.prompts import Question

HERE = Path(__file__).resolve().parent
FILES = HERE / "synthetic"
FLAT = FILES / "flat.yaml"
POOL_TOKENS = 1 << 21  # token slots of a synthetic worker: never what a measurement waits for


class AnywhereCell(ProcessCell):
    """On any processor."""

    placed = False


class Workers(AnywhereCell):
    """Nobody leads them but the benchmark."""

    led = False


def workers(
    file: Path = FLAT,
    *,
    room: int,
    tokens_each: int = 1 << 15,
    target: str | Path = "",
    kind: type[ProcessCell] = Workers,
    **more: Any,
) -> ProcessCell:
    """Synthetic workers as processes. room: sequences that each can hold, of so many tokens."""
    synthetic = {"engine": "synthetic", "synthetic": file, "max_sequences": room}
    verify, draft = {"kv_tokens": room * tokens_each}, {"context_tokens": room * tokens_each}
    return kind(target, "", verify=synthetic | verify, draft=synthetic | draft, **more)


def cell(file: Path, *, verifiers: int = 1, drafters: int = 1) -> ProcessCell:
    """A coordinator and synthetic workers as processes; start it with `with`."""
    synthetic = {"engine": "synthetic", "synthetic": file}
    return ProcessCell(
        "",
        "",
        verifiers=verifiers,
        drafters=drafters,
        coordinator={"max_running": 4096},
        verify={**synthetic, "kv_tokens": POOL_TOKENS, "max_sequences": 8192, "max_batch_tokens": 65536},
        draft={**synthetic, "context_tokens": POOL_TOKENS, "max_sequences": 8192},
    )


def slower(file: Path, pace: float, folder: Path) -> Path:
    """The same pair on devices that take `pace` times as long: what a busy machine can still follow."""
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    for role in ("verify", "draft"):
        document[role]["ms"] = [
            [value * pace for value in row] if isinstance(row, list) else row * pace for row in document[role]["ms"]
        ]
    if "prefill_ms" in document["verify"]:
        document["verify"]["prefill_ms"] *= pace
    path = folder / file.name
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Point:
    """What clients got inside the window, or for the work that was given."""

    tok_s: float
    tau: float
    budget: float  # drafted tokens verified a round and sequence
    answers: int


async def measure(endpoint: str, scenario: Scenario) -> Point:
    """The load of a scenario, for as many real seconds, on real services. Raises when a request failed."""
    longest_s = scenario.warmup_s + scenario.window_s
    plan = loop.LoadPlan(
        concurrency=scenario.concurrency,
        rate=scenario.rate,
        requests=math.ceil(2 * scenario.rate * longest_s) + 8 if scenario.rate else 0,  # more than arrive in time
        duration_s=longest_s,
        seed=scenario.seed,
    )
    settle_s = scenario.warmup_s
    if scenario.rate:  # it counts from the first arrival, the scenario from when the first gap began
        settle_s -= random.Random(f"arrivals/{scenario.seed}").expovariate(scenario.rate)
    return await windowed(endpoint, sampling(scenario), questions(scenario), plan, settle_s, scenario.window_s)


def sampling(scenario: Scenario) -> Options:
    return Options(policy=scenario.policy, temperature=scenario.temperature, seed=scenario.seed, rule="block")


async def windowed(
    endpoint: str, options: Options, asked: Iterator[Question], plan: loop.LoadPlan, settle_s: float, window_s: float
) -> Point:
    """A load, and what arrived in the `window_s` seconds from `settle_s` on. Raises when a request failed."""
    outcome = await _asked(endpoint, options, asked, plan)
    opens = outcome.opened + settle_s
    return _point(_tokens(outcome, opens, opens + window_s), window_s, outcome)


async def worked(endpoint: str, options: Options, asked: Iterator[Question], concurrency: int, answers: int) -> Point:
    """So many answers, until the first user finds nothing left to ask, after one answer a user to warm up.

    At few streams a window holds few answers, and which ones they are differs with the speed that is measured; here
    everybody who is compared does the same work, with all users busy. Raises when a request failed.
    """
    plan = loop.LoadPlan(concurrency=concurrency, requests=answers, warmup=concurrency)
    outcome = await _asked(endpoint, options, asked, plan)
    last = max(answer.sent for answer in outcome.measured)
    closes = min(answer.ended for answer in outcome.measured if answer.ended > last)
    return _point(_tokens(outcome, outcome.opened, closes), closes - outcome.opened, outcome)


async def _asked(endpoint: str, options: Options, asked: Iterator[Question], plan: loop.LoadPlan) -> loop.Outcome:
    server = GrpcEndpoint(endpoint, options)
    try:
        outcome = await loop.run(server, asked, plan, lambda *_: None)
    finally:
        await server.close()
    failed = [answer.error for answer in outcome.answers if answer.error not in ("", loop.CUT)]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed: {failed[0]}")
    return outcome


def _tokens(outcome: loop.Outcome, opens: float, closes: float) -> int:
    """Those that arrived from `opens` to `closes`."""
    return sum(
        count
        for answer in outcome.answers
        for when, count in zip(answer.times, answer.counts, strict=True)
        if opens <= when <= closes
    )


def _point(tokens: int, seconds: float, outcome: loop.Outcome) -> Point:
    told = [answer.speculation for answer in outcome.answers if answer.speculation is not None]
    rounds = max(sum(one.rounds for one in told), 1)
    return Point(
        tokens / seconds,
        sum(one.committed_by_rounds for one in told) / rounds,
        sum(one.verified for one in told) / rounds,
        len(told),
    )


def questions(scenario: Scenario) -> Iterator[Question]:
    """Requests 0, 1, 2, ... of the scenario."""
    for number in itertools.count():
        prompt, most = shape(
            number,
            domains=min(len(scenario.spec.domains), scenario.spec.vocabulary),
            prompt=scenario.prompt_tokens,
            answer=scenario.answer_tokens,
            seed=scenario.seed,
        )
        yield Question(prompt, max_tokens=most)
