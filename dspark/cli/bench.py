"""`dspark bench`: measures this cluster, or any OpenAI-style server, under load."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

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
from dspark.errors import ConfigError, InvalidRequest

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
    loop.add_argument("--concurrency", type=positives, help="users at a time (1,4,16)")
    loop.add_argument(
        "--rate", type=numbers_above_0, default=(), help="requests a second, arriving at random"
    )
    add = load.add_argument
    add(
        "--requests",
        type=natural,
        default=0,
        help="measured requests a point; 0: 4 a user, at least 16",
    )
    add("--duration", type=wait_s, default=0, help="longest window of a point; 0: no bound")
    add("--warmup", type=natural, help="requests before the window of a point (one a user)")
    add("--seed", type=int, default=0, help="of arrivals, of the order of prompts and of sampling")
    add("--timeout", type=span_s, default=600, help="longest answer")
    asked = parser.add_argument_group("requests")
    source = asked.add_mutually_exclusive_group()
    source.add_argument(
        "--prompts", type=Path, help="JSON lines with `prompt` or `prompt_token_ids`"
    )
    source.add_argument("--domains", default="chat,code,reasoning,writing", help="built-in prompts")
    source.add_argument(
        "--input-len", type=positive, help="random token ids instead, N to a prompt"
    )
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

    from dspark.loadgen import report, sweep
    from dspark.plots import check, check_file

    if args.plot is not None:
        check(args.plot)
    elif args.others:
        raise InvalidRequest("with", "needs --plot")
    if args.save is not None:
        check_file("save", args.save)
    earlier = [point for path in args.others or () for point in report.load(path)]
    given = {
        field.name: getattr(args, field.name)
        for field in fields(sweep.SweepOrder)
        if hasattr(args, field.name)
    }
    given |= _server(args)
    given |= {
        name: tuple(part.strip() for part in getattr(args, name).split(","))
        for name in ("policy", "domains")
    }
    given["concurrency"] = args.concurrency or (() if args.rate else (1, 4, 16))
    order = sweep.SweepOrder(**given, renderer=_renderer)
    points = asyncio.run(sweep.run(order))
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


def _renderer(target: str) -> Callable[[str], str] | None:
    """The target's chat template as a function from question to prompt; None if this machine has
    none."""
    if not importlib.util.find_spec("jinja2"):  # installed with the HTTP front end
        return None
    from coordinator.http.template import question_renderer

    return question_renderer(target)


def _server(args: argparse.Namespace) -> dict[str, Any]:
    """The server and the credentials for it: endpoint (None for an OpenAI-style one), token,
    tls."""
    from dspark.client.cell import whom_to_call

    if args.openai:
        key = os.environ.get(args.api_key_env) if args.api_key_env else None
        if args.api_key_env and not key:
            raise ConfigError(f"api-key-env: {args.api_key_env} is not set")
        return {"endpoint": None, "token": key}
    _, endpoint, token, tls = whom_to_call(args.endpoint, **credentials(args))
    return {"endpoint": endpoint, "token": token, "tls": tls}
