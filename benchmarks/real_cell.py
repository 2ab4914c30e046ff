"""Real services around synthetic engines, and their speed under a load: the same requests the
simulator makes, number for number, so that the same blocks are drafted and the same tokens
committed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
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


def flat(
    folder: Path, verify_ms: float | None = None, draft_ms: float | None = None, **changes: int
) -> Path:
    """Writes the flat pair's file with passes of these times, and other fields as given."""
    document = yaml.safe_load(FLAT.read_text(encoding="utf-8")) | changes
    for role, each_ms in {"verify": verify_ms, "draft": draft_ms}.items():
        if each_ms is not None:
            document[role]["ms"] = [each_ms]
    path = folder / "pair.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def workers(
    file: Path = FLAT,
    *,
    room: int,
    tokens_each: int = 1 << 15,
    target: str | Path = "",
    led: bool = False,
    verify: Mapping[str, object] = MappingProxyType({}),
    **more: Any,
) -> ProcessCell:
    """Synthetic workers as processes. room: sequences that each can hold, of `tokens_each`
    tokens. led: with a coordinator; else the benchmark drives them."""
    synthetic = {"engine": "synthetic", "synthetic": file, "max_sequences": room}
    verify = {**synthetic, "kv_tokens": room * tokens_each, **verify}
    draft = {**synthetic, "context_tokens": room * tokens_each}
    made = ProcessCell(target, "", verify=verify, draft=draft, **more)
    made.led = led
    return made


def cell(file: Path, *, verifiers: int = 1) -> ProcessCell:
    """A coordinator and synthetic workers with room for all requests; start it with `with`."""
    batch = {"max_batch_tokens": 65536}
    more: dict[str, Any] = {"coordinator": {"max_running": 4096}, "verifiers": verifiers}
    return workers(file, room=8192, tokens_each=256, led=True, verify=batch, **more)


def sampling(scenario: Scenario) -> Options:
    return Options(
        policy=scenario.policy, temperature=scenario.temperature, seed=scenario.seed, rule="block"
    )


async def windowed(
    endpoint: str,
    options: Options,
    asked: Iterator[Question],
    plan: loop.LoadPlan,
    settle_s: float,
    window_s: float,
) -> float:
    """Tokens a second that arrived in the `window_s` seconds from `settle_s` on. Raises when a
    request failed."""
    outcome = await _asked(endpoint, options, asked, plan)
    opens = outcome.opened + settle_s
    return outcome.tokens(opens, opens + window_s) / window_s


async def worked(
    endpoint: str, options: Options, asked: Iterator[Question], concurrency: int, answers: int
) -> float:
    """Tokens a second of `answers` answers, until the first user has nothing left to ask. Before
    them every user warms up with one answer.

    At few streams a window holds few answers, and which ones they are differs with the speed that
    is measured; here all contestants do the same work, with all users busy. Raises when a request
    failed.
    """
    plan = loop.LoadPlan(concurrency=concurrency, requests=answers, warmup=concurrency)
    outcome = await _asked(endpoint, options, asked, plan)
    last = max(answer.sent for answer in outcome.measured)
    closes = min(answer.ended for answer in outcome.measured if answer.ended > last)
    return outcome.tokens(outcome.opened, closes) / (closes - outcome.opened)


async def _asked(
    endpoint: str, options: Options, asked: Iterator[Question], plan: loop.LoadPlan
) -> loop.Outcome:
    server = GrpcEndpoint(endpoint, options)
    try:
        outcome = await loop.run(server, asked, plan)
    finally:
        await server.close()
    failed = [answer.error for answer in outcome.answers if answer.error not in ("", loop.CUT)]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed: {failed[0]}")
    return outcome


def questions(scenario: Scenario) -> Iterator[Question]:
    """Requests 0, 1, 2, ... of the scenario."""
    for number in itertools.count():
        prompt, most = shape(scenario, number)
        yield Question(prompt, max_tokens=most)
