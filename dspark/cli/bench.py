"""`dspark bench`: measures this cluster, or any OpenAI-style server, under load."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark.cli.options import (
    RULES,
    add_endpoint,
    credentials,
    natural,
    numbers_above_0,
    positive,
    positives,
    span_s,
    wait_s,
)
from dspark.errors import ConfigError, InvalidRequest, WrongCommand

if TYPE_CHECKING:
    from dspark.loadgen.answer import Endpoint
    from dspark.loadgen.prompts import Question
    from dspark.loadgen.run import LoadPlan

RANDOM_PROMPTS = 256
PER_USER, LEAST = 4, 16  # measured requests of a point by default: for each user, and at least

DESCRIPTION = """Asks at the given concurrency (closed loop) or rate (open loop, random arrivals)
and measures from outside: time to first token, time per token, tokens a second per user and in all,
and what speculation did. Latency counts from the intended start of a request. Lists (--concurrency,
--rate, --policy) make a sweep."""


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "bench", help="measure a server under load", description=DESCRIPTION
    )
    server = parser.add_argument_group("server")
    add_endpoint(server)
    add = server.add_argument
    add("--openai", default="", metavar="URL", help="an OpenAI-style server instead, with its /v1")
    add("--model", default="", help="model name to ask the OpenAI-style server for")
    add("--api-key-env", metavar="NAME", help="environment variable with its key")
    load = parser.add_argument_group("load")
    loop = load.add_mutually_exclusive_group()
    add = loop.add_argument
    add("--concurrency", type=positives, help="users at a time (1,4,16)")
    add("--rate", type=numbers_above_0, default=(), help="requests a second, arriving at random")
    add = load.add_argument
    add("--requests", type=natural, default=0, help="measured a point; 0: 4 a user, at least 16")
    add("--duration", type=wait_s, default=0, help="longest window of a point; 0: no bound")
    add("--warmup", type=natural, help="requests before the window of a point (one a user)")
    add("--seed", type=int, default=0, help="of arrivals, of the order of prompts and of sampling")
    add("--timeout", type=span_s, default=600, help="longest answer")
    asked = parser.add_argument_group("requests")
    source = asked.add_mutually_exclusive_group()
    add = source.add_argument
    add("--prompts", type=Path, help="JSON lines with `prompt` or `prompt_token_ids`")
    add("--domains", default="chat,code,reasoning,writing", help="built-in prompts")
    add("--input-len", type=positive, help="random token ids instead, N to a prompt")
    add = asked.add_argument
    add("--vocabulary", type=positive, help="ids below N for --input-len with --openai")
    add("--output-len", type=positive, default=128, help="longest answer in tokens")
    add("--stop-at-eos", action="store_true", help="let answers end by themselves")
    add("--temperature", type=float, default=0, help="0 is greedy")
    add("--policy", default="", help="policies, one series each (the deployment's)")
    add("--rule", choices=RULES, help="acceptance rule")
    out = parser.add_argument_group("output")
    add = out.add_argument
    add("--json", action="store_true", help="one JSON object instead of a table")
    add("--save", type=Path, help="write the JSON object to a file")
    add("--plot", type=Path, help="PNG or SVG: speed per user against speed in all, budget")
    add("--with", dest="others", type=Path, nargs="+", help="saved runs to plot too")
    parser.set_defaults(run=_bench)


def _bench(args: argparse.Namespace) -> int:
    import asyncio

    from dspark.loadgen import report
    from dspark.plots import check_output

    read = [path for path in (args.prompts, *(args.others or ())) if path is not None]
    check_output("save", args.save, *read)
    check_output("plot", args.plot, *read)
    if args.others and args.plot is None:
        raise WrongCommand("with: needs --plot")
    earlier = [point for path in args.others or () for point in report.load(path)]
    points = asyncio.run(_points(args))
    result = {
        "command": " ".join(["dspark", "bench", *sys.argv[2:]]),
        **report.machine(),
        "points": points,
    }
    if args.save is not None:
        args.save.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if args.plot is not None:
        report.draw([*earlier, *points], args.plot)
    print(json.dumps(result) if args.json else report.table(points))
    return 1 if any(point["errors"] for point in points) else 0


async def _points(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The summaries of all measurements, one by one: policies take turns at each load, so that a
    disturbance of the machine hits all of them alike."""
    from dspark.loadgen.prompts import cycle
    from dspark.loadgen.run import run
    from dspark.loadgen.summary import summarise

    users = args.concurrency or (() if args.rate else (1, 4, 16))
    plans = [_plan(args, concurrency=each) for each in users]
    plans += [_plan(args, rate=rate) for rate in args.rate]
    endpoints, points = _endpoints(args), []
    try:
        questions = await _questions(args, endpoints[0])
        for plan, endpoint in itertools.product(plans, endpoints):
            asked = cycle(questions, plan.seed)
            outcome = await run(endpoint, asked, plan, bar=sys.stderr.isatty())
            point = summarise(outcome, series=endpoint.name, counted_by=endpoint.counted_by)
            points.append(point)
            if point["errors"] and not point["answers"]:
                print(f"no request succeeded: {point['errors']}", file=sys.stderr)
        return points
    finally:
        for endpoint in endpoints:
            await endpoint.close()


def _plan(args: argparse.Namespace, *, concurrency: int = 0, rate: float = 0.0) -> LoadPlan:
    from dspark.loadgen.run import LoadPlan

    requests = args.requests
    if not requests and not args.duration:
        requests = max(LEAST, PER_USER * concurrency)
    return LoadPlan(
        concurrency=concurrency,
        rate=rate,
        requests=requests,
        duration_s=args.duration,
        warmup=args.warmup if args.warmup is not None else max(2, concurrency),
        timeout_s=args.timeout,
        seed=args.seed,
    )


def _endpoints(args: argparse.Namespace) -> list[Endpoint]:
    """The server, once for every policy."""
    from dspark.client import Options
    from dspark.client.cell import whom_to_call
    from dspark.loadgen.grpc_endpoint import GrpcEndpoint
    from dspark.loadgen.openai_endpoint import OpenAiEndpoint

    policies = [part.strip() for part in args.policy.split(",")]
    sampling = Options(
        max_tokens=args.output_len,
        temperature=args.temperature,
        ignore_eos=None if args.stop_at_eos else True,
        seed=args.seed if args.temperature > 0 else None,
    )
    if args.openai:
        key = os.environ.get(args.api_key_env) if args.api_key_env else None
        if args.api_key_env and not key:
            raise ConfigError(f"api-key-env: {args.api_key_env} is not set")
        if not args.model:
            raise WrongCommand("model: say which model the OpenAI-style server is to be asked for")
        if args.rule or policies != [""]:
            raise WrongCommand(
                "policy: policies and rules are this project's; an OpenAI-style server has none"
            )
        return [OpenAiEndpoint(args.openai, args.model, sampling, api_key=key)]
    _, endpoint, token, tls = whom_to_call(args.endpoint, **credentials(args))
    return [
        GrpcEndpoint(
            endpoint, sampling | Options(policy=policy, rule=args.rule), token=token, tls=tls
        )
        for policy in policies
    ]


async def _questions(args: argparse.Namespace, endpoint: Endpoint) -> list[Question]:
    from dspark.loadgen import prompts
    from dspark.loadgen.grpc_endpoint import GrpcEndpoint

    if args.prompts is not None:
        return prompts.from_file(args.prompts)
    domains = [part.strip() for part in args.domains.split(",")]
    if unknown := set(domains) - set(prompts.DOMAINS):
        raise WrongCommand(f"domains: {sorted(unknown)} are none of {', '.join(prompts.DOMAINS)}")
    info = await endpoint.model_info() if isinstance(endpoint, GrpcEndpoint) else None
    if args.input_len is not None:
        if info is not None and args.input_len + args.output_len > info.context_length:
            told = (
                f"{args.input_len} tokens and {args.output_len} more exceed the context of "
                f"{info.context_length}"
            )
            raise InvalidRequest("input-len", told)
        vocabulary = args.vocabulary or (info.vocab_size if info else 0)
        if not vocabulary:
            raise WrongCommand(
                "vocabulary: say how many token ids the model of the OpenAI-style server has"
            )
        return prompts.random_ids(RANDOM_PROMPTS, args.input_len, vocabulary, args.seed)
    if info is not None and not info.has_tokenizer:
        raise InvalidRequest(
            "input-len",
            "the model has no tokenizer; ask it with --input-len N or token ids in a file",
        )
    return prompts.built_in(domains, _renderer(info.model) if info else None)


def _renderer(target: str) -> Callable[[str], str] | None:
    """The target's chat template as a function from question to prompt; None if this machine has
    none."""
    if not importlib.util.find_spec("jinja2"):  # installed with the HTTP front end
        return None
    from coordinator.http.template import question_renderer

    return question_renderer(target)
