"""One stream at temperature 0: our tokens per second against what a user would run instead, on the same target.

    python -m benchmarks.single_stream [--quick] [--vllm-python FILE]

Against transformers `generate`, its assisted generation with a small language model, and vLLM's CPU build; on the
shipped pair and on its deepened twin (benchmarks/twin.py). All contestants are up at the same time on the same two
cores and take turns; a ratio is the median over the repetitions of the ratio inside a repetition. Clients are part of
every time.

tau stands beside each figure with the ceiling it implies over plain decoding in our own engine:
tau * T_v(1) / (T_v(l+1) + T_d + N), all measured: T_v(1) from plain rounds, T_v(l+1), T_d and N (the hops) from rounds
with drafts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import cores, ours, twin
from benchmarks.pair import DOMAINS, Pair, add_arguments, chosen
from benchmarks.peers import vllm_choice, vllm_server
from benchmarks.peers.contestant import Absent, Contestant
from benchmarks.peers.transformers_peer import TransformersPeer
from benchmarks.row import Row, note
from benchmarks.turns import Race

GENERATE, ASSISTED, VLLM = "transformers generate", "transformers assisted", "vllm"
TRIAL_TOKENS = 40
# pair -> least ratio of the means over the domains, by peer; and of the best domain over `generate`
BARS: dict[str, dict[str, float]] = {
    "shipped": {GENERATE: 1.7, ASSISTED: 1.4, VLLM: 1.6, "best domain": 2.5},
    "twin": {GENERATE: 2.0, ASSISTED: 1.6, VLLM: 2.0, "best domain": 3.0},
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.single_stream", description=__doc__)
    add_arguments(parser)
    ours.add_arguments(parser)
    vllm_choice.add_arguments(parser)
    parser.add_argument("--assistant", type=Path, help="a language model that drafts, for assisted generation")
    parser.add_argument("--pairs", default="shipped,twin", help="shipped, twin or both")
    parser.add_argument("--times", type=int, default=twin.TIMES, help="depth of the twin")
    parser.add_argument("--repetitions", type=int, help="5")
    parser.add_argument("--prompts", type=int, help="2 of each domain")
    parser.add_argument("--tokens", type=int, help="128 an answer")
    parser.add_argument("--speculating", action="store_true", help="vLLM with its own speculation too, without a bar")
    parser.add_argument("--quick", action="store_true", help="3 repetitions of 1 prompt, 48 tokens")
    args = parser.parse_args(argv)
    pair, code = chosen(args), 0
    shape = (3, 1, 48) if args.quick else (5, 2, 128)
    given = (args.repetitions, args.prompts, args.tokens)
    repetitions, prompts, tokens = (wish or usual for wish, usual in zip(given, shape, strict=True))
    used = cores.pin()
    for name in args.pairs.split(","):
        if name not in BARS:
            parser.error(f"--pairs: {name!r} is neither shipped nor twin")
        under_test = pair if name == "shipped" else twin.build(pair, times=args.times).pair
        note(f"{name}: {under_test.target.name} with {under_test.drafter.name}, cores {used}")
        value = _measure(args, under_test, used, repetitions, prompts, tokens)
        code |= _row(name, value, args).show(as_json=args.json)
    return code


def _measure(
    args: argparse.Namespace, pair: Pair, used: Sequence[int], repetitions: int, prompts: int, tokens: int
) -> dict[str, Any]:
    questions = {domain: [pair.token_ids(p) for p in pair.prompts(domain, prompts)] for domain in DOMAINS}
    absent: dict[str, str] = {}
    given = ours.settings(args)
    with ExitStack() as stack:
        contestants: list[Contestant] = []
        peer = stack.enter_context(TransformersPeer(pair.target, args.assistant, used))
        peer.tune([questions[domain][0] for domain in (DOMAINS[:1] if args.quick else DOMAINS)])
        contestants.append(peer.plain)
        if args.assistant is None:
            absent[ASSISTED] = "no --assistant was named"
        else:
            contestants.append(peer.assisted)
        try:
            first = [questions[domain][0] for domain in DOMAINS]
            vllm = vllm_choice.start_best(
                stack, args, pair.target, used, lambda server: _seconds(server, first), quick=args.quick
            )
            contestants.append(vllm)
            note(f"vllm serves with {vllm.openmp} OpenMP")
        except Absent as reason:
            absent[VLLM] = str(reason)
        for speculation in _speculations(args):
            try:
                server = vllm_server.VllmServer(
                    args.vllm_python,
                    pair.target,
                    used,
                    speculation=speculation,
                    openmp="intel",
                    start_s=args.vllm_start_s,
                )
                contestants.append(stack.enter_context(server))
                note(f"{server.name} serves")
            except Absent as reason:
                absent[f"vllm {speculation['method']}"] = str(reason)
        client = stack.enter_context(stack.enter_context(ours.cell(pair, given)).client())
        ahead, plain = ours.Ours(client, args.policy), ours.Ours(client, "off")
        race = Race([ahead, plain, *contestants], questions, tokens, ours.Meter(client))
        race.warm_up()
        for repetition in range(repetitions):
            race.turn(repetition)
            note(f"  repetition {repetition + 1} of {repetitions}")
    value: dict[str, Any] = {
        "target": pair.target.name,
        "domains": {domain: race.domain(domain, ahead.name, plain.name) for domain in DOMAINS},
        "answers": {"repetitions": repetitions, "prompts_a_domain": prompts, "tokens": tokens},
        "same_ids": race.same_ids(ahead.name),
        "settings": {"ours": {k: dict(v) for k, v in given.items() if v}, "policy": args.policy},
    }
    value["settings"]["vllm"] = {"openmp": args.vllm_openmp}
    value["settings"]["transformers"] = {"generate": peer.settings[False], "assisted": peer.settings[True]}
    names = [contestant.name for contestant in (plain, *contestants)]
    value["mean"] = {
        other: round(statistics.mean(value["domains"][domain]["ratio"][other] for domain in DOMAINS), 3)
        for other in names
    }
    value["best domain over generate"] = max(value["domains"][domain]["ratio"][GENERATE] for domain in DOMAINS)
    if absent:
        value["absent"] = absent
    return value


def _seconds(contestant: Contestant, prompts: list[list[int]]) -> float:
    """Of short answers to `prompts`, warm."""
    contestant.ask(prompts[0], TRIAL_TOKENS)
    return sum(contestant.ask(prompt, TRIAL_TOKENS).seconds for prompt in prompts)


def _speculations(args: argparse.Namespace) -> list[dict[str, Any]]:
    if not args.speculating:
        return []
    return [vllm_server.NGRAM, *([vllm_server.draft_model(args.assistant)] if args.assistant else [])]


def _row(name: str, value: dict[str, Any], args: argparse.Namespace) -> Row:
    bars = BARS[name]
    reached = {peer: value["mean"].get(peer) for peer in (GENERATE, ASSISTED, VLLM)}
    reached["best domain"] = value["best domain over generate"]
    measured = {peer: ratio >= bars[peer] for peer, ratio in reached.items() if ratio is not None}
    holds: bool | None = all(measured.values())
    if holds and len(measured) < len(bars):
        holds = None  # nothing failed, but a peer is missing
    what = "shipped pair" if name == "shipped" else f"deepened twin of it, {args.times} times as deep"
    bar = ", ".join(f"{peer} >= {least:g}x" for peer, least in bars.items())
    return Row(f"B2 {name}", f"one stream, {what}", value | {"reached": reached}, f"mean of domains: {bar}", holds)


if __name__ == "__main__":
    sys.exit(main())
