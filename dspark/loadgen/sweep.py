"""Measures a sweep: every series (policy) at every load (concurrency or rate), one by one.

Policies take turns at each load, so that a disturbance of the machine hits all of them alike.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark.client.request import Options
from dspark.errors import InvalidRequest
from dspark.loadgen import prompts
from dspark.loadgen import run as loop
from dspark.loadgen.answer import Endpoint
from dspark.loadgen.grpc_endpoint import GrpcEndpoint
from dspark.loadgen.openai_endpoint import OpenAiEndpoint
from dspark.loadgen.prompts import Question
from dspark.loadgen.summary import summarise
from dspark.progress import progress
from dspark.runtime.tls import Tls

RANDOM_PROMPTS = 256
Render = Callable[[str], str]

PER_USER, LEAST = 4, 16  # measured requests of a point by default: for each user, and at least


@dataclass(frozen=True)
class SweepOrder:
    """The options of `dspark bench`; see its --help. `endpoint` None: the server at `openai`."""

    endpoint: str | None
    token: str | None
    openai: str
    model: str
    concurrency: Sequence[int]
    rate: Sequence[float]
    policy: tuple[str, ...]
    requests: int
    duration: float  # seconds
    warmup: int | None
    seed: int
    timeout: float  # seconds
    prompts: Path | None
    domains: tuple[str, ...]
    input_len: int | None
    vocabulary: int | None
    output_len: int
    stop_at_eos: bool
    temperature: float
    rule: str | None
    tls: Tls | None = None
    # target -> its chat template, as a function from question to prompt; None: it has none
    renderer: Callable[[str], Render | None] = lambda target: None

    def __post_init__(self) -> None:
        if self.endpoint is None and not self.model:
            raise InvalidRequest(
                "model", "say which model the OpenAI-style server is to be asked for"
            )
        if self.endpoint is None and (self.rule or self.policy != ("",)):
            raise InvalidRequest(
                "policy", "policies and rules are this project's; an OpenAI-style server has none"
            )
        unknown = set(self.domains) - set(prompts.DOMAINS)
        if unknown:
            raise InvalidRequest(
                "domains", f"{sorted(unknown)} are none of {', '.join(prompts.DOMAINS)}"
            )


async def run(order: SweepOrder) -> list[dict[str, Any]]:
    """Runs every measurement of the sweep; returns their summaries."""
    endpoints = [_endpoint(order, policy) for policy in order.policy]
    try:
        questions = await _questions(order, endpoints[0])
        plans = [_plan(order, users, 0.0) for users in order.concurrency]
        plans += [_plan(order, 0, rate) for rate in order.rate]
        points = []
        for plan, endpoint in itertools.product(plans, endpoints):
            point = await _measured(endpoint, questions, plan)
            points.append(point)
            if point["errors"] and not point["answers"]:
                print(f"no request succeeded: {point['errors']}", file=sys.stderr)
        return points
    finally:
        for endpoint in endpoints:
            await endpoint.close()


async def _measured(
    endpoint: Endpoint, questions: list[Question], plan: loop.LoadPlan
) -> dict[str, Any]:
    load = f"{plan.concurrency} users" if plan.concurrency else f"{plan.rate:g} a second"
    total = plan.requests + plan.warmup if plan.requests else None
    with progress(f"{endpoint.name}, {load}", total, shown=sys.stderr.isatty()) as tell:

        def told(answers: int, tokens: int) -> None:
            tell(completed=answers, note=f"{tokens:,} tokens")

        outcome = await loop.run(endpoint, prompts.cycle(questions, plan.seed), plan, told)
    return summarise(outcome, series=endpoint.name, counted_by=endpoint.counted_by)


def _plan(order: SweepOrder, concurrency: int, rate: float) -> loop.LoadPlan:
    requests = order.requests
    if not requests and not order.duration:
        requests = max(LEAST, PER_USER * concurrency)
    warmup = order.warmup if order.warmup is not None else max(2, concurrency)
    return loop.LoadPlan(
        concurrency=concurrency,
        rate=rate,
        requests=requests,
        duration_s=order.duration,
        warmup=warmup,
        timeout_s=order.timeout,
        seed=order.seed,
    )


def _endpoint(order: SweepOrder, policy: str) -> Endpoint:
    seed = order.seed if order.temperature > 0 else None
    sampling = Options(
        max_tokens=order.output_len,
        temperature=order.temperature,
        ignore_eos=None if order.stop_at_eos else True,
        seed=seed,
    )
    if order.endpoint is None:
        return OpenAiEndpoint(order.openai, order.model, sampling, api_key=order.token)
    sampling |= Options(policy=policy, rule=order.rule)
    return GrpcEndpoint(order.endpoint, sampling, token=order.token, tls=order.tls)


async def _questions(order: SweepOrder, endpoint: Endpoint) -> list[Question]:
    if order.prompts is not None:
        return prompts.from_file(order.prompts)
    info = await endpoint.model_info() if isinstance(endpoint, GrpcEndpoint) else None
    if order.input_len is not None:
        if info is not None and order.input_len + order.output_len > info.context_length:
            told = (
                f"{order.input_len} tokens and {order.output_len} more exceed the context of "
                f"{info.context_length}"
            )
            raise InvalidRequest("input-len", told)
        vocabulary = order.vocabulary or (info.vocab_size if info else 0)
        if not vocabulary:
            raise InvalidRequest(
                "vocabulary", "say how many token ids the model of the OpenAI-style server has"
            )
        return prompts.random_ids(RANDOM_PROMPTS, order.input_len, vocabulary, order.seed)
    if info is not None and not info.has_tokenizer:
        raise InvalidRequest(
            "input-len",
            "the model has no tokenizer; ask it with --input-len N or token ids in a file",
        )
    return prompts.built_in(order.domains, order.renderer(info.model) if info else None)
