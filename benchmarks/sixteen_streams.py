"""Sixteen streams at once at temperature 0: aggregate tokens per second against vLLM's CPU build, and our own `off`.

    python -m benchmarks.sixteen_streams [--quick] [--vllm-python FILE]

A closed loop of sixteen users over the held-out prompts of all domains in turns, answers of one length, everybody on
the same two cores with the client. A window of fixed length, with sixteen streams in all of it: a window that waited
for the last answers would measure how alike they end. Contestants take turns; a ratio is the median over the
repetitions of the ratio inside a repetition. vLLM serves over its OpenAI-style interface, we over gRPC: what a user
would connect to.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
from collections import Counter
from contextlib import ExitStack
from typing import Any

from benchmarks import cores, ours
from benchmarks.pair import DOMAINS, Pair, add_arguments, chosen
from benchmarks.peers import vllm_choice, vllm_server
from benchmarks.peers.contestant import Absent
from benchmarks.row import Row, note
from benchmarks.turns import ratios, rotated
from dspark.client.request import Sampling
from dspark.loadgen import run as loop
from dspark.loadgen.answer import Endpoint
from dspark.loadgen.grpc_endpoint import GrpcEndpoint
from dspark.loadgen.prompts import Question
from dspark.loadgen.summary import summarise

VLLM, OFF = "vllm", "dspark off"
TRIAL_TOKENS = 32
BARS = {VLLM: 0.9, OFF: 1.1}
KEPT = ("tok_s", "tok_s_user", "ttft_ms", "itl_ms", "tau", "budget", "verified_per_token", "bytes_per_token")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sixteen_streams", description=__doc__)
    add_arguments(parser)
    ours.add_arguments(parser)
    vllm_choice.add_arguments(parser)
    parser.add_argument("--verifiers", type=int, default=1, help="in our cell, a thread each (1)")
    parser.add_argument("--drafters", type=int, default=1, help="in our cell, a thread each (1)")
    parser.add_argument("--streams", type=int, default=16, help="users at a time (16)")
    parser.add_argument("--repetitions", type=int, help="5")
    parser.add_argument("--seconds", type=float, help="of a window: 15")
    parser.add_argument("--tokens", type=int, help="128 an answer")
    parser.add_argument("--speculating", action="store_true", help="vLLM with n-gram speculation too, without a bar")
    parser.add_argument("--quick", action="store_true", help="3 repetitions of 5 s, 64 tokens")
    args = parser.parse_args(argv)
    pair = chosen(args)
    shape = (3, 5, 64) if args.quick else (5, 15, 128)
    given = (args.repetitions, args.seconds, args.tokens)
    repetitions, seconds, tokens = (wish or usual for wish, usual in zip(given, shape, strict=True))
    used, absent = cores.pin(), {}
    with ExitStack() as stack:
        servers = []
        try:
            vllm = vllm_choice.start_best(
                stack, args, pair.target, used, lambda server: _seconds(server, args.streams, pair), quick=args.quick
            )
            servers.append(vllm)
            note(f"vllm serves with {vllm.openmp} OpenMP")
            if args.speculating:
                ngram = vllm_server.NGRAM
                server = vllm_server.VllmServer(
                    args.vllm_python, pair.target, used, speculation=ngram, openmp="intel", start_s=args.vllm_start_s
                )
                servers.append(stack.enter_context(server))
        except Absent as reason:
            absent[VLLM if not servers else "vllm ngram"] = str(reason)
        settings = ours.settings(args)
        cell = stack.enter_context(ours.cell(pair, settings, verifiers=args.verifiers, drafters=args.drafters))
        points = asyncio.run(_measure(args, pair, cell.endpoint, servers, repetitions, seconds, tokens))
    value = _value(points, f"dspark {args.policy}")
    value |= {"streams": args.streams, "tokens": tokens, "repetitions": repetitions, "seconds": seconds, "cores": used}
    value["settings"] = {role: dict(flags) for role, flags in settings.items() if flags}
    value["settings"]["vllm"] = {"openmp": args.vllm_openmp}
    if absent:
        value["absent"] = absent
    return _row(value, args.streams).show(as_json=args.json)


async def _measure(
    args: argparse.Namespace,
    pair: Pair,
    address: str,
    servers: list[vllm_server.VllmServer],
    repetitions: int,
    seconds: float,
    tokens: int,
) -> dict[str, list[dict[str, Any]]]:
    """Summaries by contestant, one a repetition."""
    sampling = {"max_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
    endpoints: list[Endpoint] = [
        GrpcEndpoint(address, Sampling(policy=policy, **sampling), name=f"dspark {policy}")  # type: ignore[arg-type]
        for policy in (args.policy, "off")
    ]
    endpoints += [server.endpoint(tokens) for server in servers]
    questions = _questions(pair, args.streams)
    points: dict[str, list[dict[str, Any]]] = {endpoint.name: [] for endpoint in endpoints}
    try:
        for repetition in range(repetitions):
            for endpoint in rotated(endpoints, repetition):
                plan = loop.LoadPlan(
                    concurrency=args.streams,
                    duration_s=seconds,
                    warmup=args.streams if repetition == 0 else 0,
                )
                outcome = await loop.run(endpoint, itertools.cycle(questions), plan, lambda answers, tokens: None)
                points[endpoint.name].append(summarise(outcome, series=endpoint.name))
            note(f"  repetition {repetition + 1} of {repetitions}")
    finally:
        for endpoint in endpoints:
            await endpoint.close()
    return points


def _questions(pair: Pair, streams: int) -> list[Question]:
    """One for each stream, domains in turns."""
    each = -(-streams // len(DOMAINS))
    columns = [[Question(tuple(pair.token_ids(p)), d) for p in pair.prompts(d, each)] for d in DOMAINS]
    return [question for row in zip(*columns, strict=True) for question in row][:streams]


def _seconds(server: vllm_server.VllmServer, streams: int, pair: Pair) -> float:
    """Of short answers to everybody at once, warm."""
    plan = loop.LoadPlan(concurrency=streams, requests=streams, warmup=streams)
    questions = iter(2 * _questions(pair, streams))
    outcome = asyncio.run(loop.run(server.endpoint(TRIAL_TOKENS), questions, plan, lambda answers, tokens: None))
    return outcome.closed - outcome.opened


def _value(points: dict[str, list[dict[str, Any]]], ahead: str) -> dict[str, Any]:
    own = [point["tok_s"] for point in points[ahead]]
    over = {
        name: round(statistics.median(ratios(own, [point["tok_s"] for point in given])), 3)
        for name, given in points.items()
        if name != ahead
    }
    middle = {name: sorted(given, key=lambda p: p["tok_s"])[len(given) // 2] for name, given in points.items()}
    shown = {name: {key: point[key] for key in KEPT} for name, point in middle.items()}
    errors = {name: dict(sum((Counter(p["errors"]) for p in given), Counter())) for name, given in points.items()}
    return {
        "tok_s": {name: point["tok_s"] for name, point in middle.items()},
        "ratio": over,
        "errors": {name: counts for name, counts in errors.items() if counts},  # of all repetitions
        "median_run": shown,
    }


def _row(value: dict[str, Any], streams: int) -> Row:
    measured = {name: value["ratio"][name] >= least for name, least in BARS.items() if name in value["ratio"]}
    holds: bool | None = all(measured.values()) and not value["errors"]
    if holds and len(measured) < len(BARS):
        holds = None  # nothing failed, but a peer is missing
    bar = ", ".join(f"{name} >= {least:g}x" for name, least in BARS.items())
    return Row("B3", f"{streams} streams, aggregate", value, bar, holds)


if __name__ == "__main__":
    sys.exit(main())
