"""One stream and eight at temperature 0: tokens a second beside what a user would run instead, on
the same target.

    python -m benchmarks.peers [--streams 1,8] [--vllm-python FILE] [--llama-python FILE]
                               [--gguf FILE] [--quick]

This project and one peer at a time run on the same two cores and take turns; a ratio is the median
over the repetitions of the ratio inside a repetition. Answers have one length, stop tokens are
ignored, the client is part of every time. With several streams that many prompts are asked at once,
and the time ends with the last answer; peers that decode one sequence at a time take them in turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.pair import DOMAINS, Pair, add_arguments, chosen
from benchmarks.peers.contestant import NOT_INSTALLED, Contestant, PeerUnavailable
from benchmarks.peers.llama_peer import LlamaCpp, write_f16
from benchmarks.peers.transformers_peer import TransformersWorker
from benchmarks.peers.vllm_server import VllmServer
from benchmarks.row import Program, Row, note
from benchmarks.turns import ratios, rotated
from deploy.processes import ProcessCell
from dspark.client import Client, Completion, Options

WARM_TOKENS = 8
TIMEOUT_S = 300.0  # of an answer of this project's
OURS, REFERENCE = "dspark", "transformers generate"
VLLM, LLAMA = "DSPARK_VLLM_PYTHON", "DSPARK_LLAMA_PYTHON"
VLLM_MODES: Mapping[str, Mapping[str, Any]] = {
    "vllm float32": {},
    "vllm bfloat16": {"dtype": "bfloat16"},
    "vllm float32 ngram": {"ngram": True},
}


def main(argv: list[str] | None = None) -> int:
    parser = Program("peers", __doc__)
    add_arguments(parser)
    add = parser.add_argument
    add("--streams", default="1,8", help="prompts asked at once")
    add("--vllm-python", type=Path, default=os.environ.get(VLLM) or None, help=f"(${VLLM})")
    add("--llama-python", type=Path, default=os.environ.get(LLAMA) or None, help=f"(${LLAMA})")
    add("--gguf", type=Path, help="the target's weights as llama.cpp reads them")
    add("--assistant", type=Path, help="a language model that drafts, for assisted generation")
    add("--repetitions", type=int, help="5")
    add("--prompts", type=int, help="2 of each domain")
    add("--tokens", type=int, help="96 an answer")
    add("--quick", action="store_true", help="2 repetitions of 1 prompt, 24 tokens")
    args = parser.parse_args(argv)
    pair, code = chosen(args), 0
    shape = (2, 1, 24) if args.quick else (5, 2, 96)
    given = (args.repetitions, args.prompts, args.tokens)
    repetitions, prompts, tokens = (wish or usual for wish, usual in zip(given, shape, strict=True))
    questions = {
        domain: [pair.token_ids(p) for p in pair.prompts(domain, prompts)] for domain in DOMAINS
    }
    absent: dict[str, str] = {}
    streams = [int(count) for count in args.streams.split(",")]
    values: dict[int, dict[str, Any]] = {}
    used = _pinned()
    # In float32, as the peers it is compared with.
    with (
        ProcessCell(pair.target, pair.drafter, verify={"dtype": "float32"}) as cell,
        cell.client() as client,
    ):
        ahead = [Ours(client), Ours(client, "off")]
        for start in _peers(args, pair, used, questions[DOMAINS[0]][0], absent):
            with ExitStack() as stack:
                contestants = [*ahead, *start(stack)]
                if len(contestants) == len(ahead):
                    continue
                for contestant in contestants:
                    contestant.answers([questions[DOMAINS[0]][0]], WARM_TOKENS)
                for count in streams:
                    measured = Contest(
                        [c for c in contestants if count == 1 or not c.most],
                        questions,
                        count,
                        tokens,
                    )
                    for repetition in range(repetitions):
                        measured.turn(repetition)
                        note(f"  {count} streams, repetition {repetition + 1} of {repetitions}")
                    _merge(
                        values.setdefault(count, {"streams": count, "tokens": tokens}),
                        measured.value(),
                    )
            del ahead[1:]  # plain decoding is compared once
    for count, value in values.items():
        value |= {"repetitions": repetitions, "absent": absent}
        name = (
            f"{count} streams beside other programs"
            if count > 1
            else "one stream beside other programs"
        )
        same = value["same_ids"].get(REFERENCE)
        row = Row(
            f"B2 {count}", name, value, f"ids of {REFERENCE}", None if same is None else same == 1.0
        )
        code |= row.show(as_json=args.json)
    return code


class Ours:
    """A cell under one policy; the cell's own when none is named."""

    most = 0

    def __init__(self, client: Client, policy: str = "") -> None:
        self.name = f"dspark {policy}".strip()
        self.rounds = self.committed = 0  # of all answers so far
        self._client, self._policy = client, policy

    def answers(self, prompts: Sequence[list[int]], tokens: int) -> list[list[int]]:
        with ThreadPoolExecutor(len(prompts)) as threads:
            made = list(threads.map(lambda prompt: self._answer(prompt, tokens), prompts))
        for each in made:
            told = each.end.speculation
            self.rounds += told.rounds
            self.committed += round(told.mean_acceptance_length * told.rounds)
        return [list(each.token_ids) for each in made]

    def _answer(self, prompt: list[int], tokens: int) -> Completion:
        options: Options = {"max_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
        if self._policy:
            options["policy"] = self._policy
        return self._client.complete(prompt, timeout=TIMEOUT_S, **options)


def _pinned() -> tuple[int, ...]:
    """Keeps this process and all it starts, client included, on the first two cores it may use;
    returns those."""
    used = tuple(sorted(os.sched_getaffinity(0))[:2])
    if len(used) < 2:
        raise SystemExit(f"2 CPU cores are needed, {len(used)} may be used")
    os.sched_setaffinity(0, used)
    return used


def _merge(value: dict[str, Any], more: Mapping[str, Mapping[str, Any]]) -> None:
    """Adds the tables of one more run; what is there already stays."""
    for table, rows in more.items():
        value[table] = {**rows, **value.get(table, {})}


Start = Callable[[ExitStack], list[Contestant]]  # what it starts ends with the stack
Make = Callable[..., AbstractContextManager[Contestant]]  # by the contestant's name


def _peers(
    args: argparse.Namespace,
    pair: Pair,
    used: Sequence[int],
    prompt: list[int],
    absent: dict[str, str],
) -> Iterator[Start]:
    """Starters of the peers that run at the same time, group by group; `absent` gets the reasons
    for those that are missing."""

    def transformers(stack: ExitStack) -> list[Contestant]:
        peer = stack.enter_context(TransformersWorker(pair.target, args.assistant, used))
        peer.tune(prompt)
        return [*peer.modes()]

    def started(name: str, stack: ExitStack, make: Make) -> list[Contestant]:
        """Starts the peer of this name; none when it does not start."""
        try:
            peer = stack.enter_context(make(name))
        except PeerUnavailable as reason:
            absent[name] = str(reason)
            return []
        note(f"{name} is up")
        return [peer]

    def llama(stack: ExitStack) -> list[Contestant]:
        plain = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dspark-peers-")))
            / "f16.gguf"
        )
        write_f16(args.gguf, plain)
        files = {"llama.cpp F16": plain, "llama.cpp as packed": args.gguf}
        up = (
            started(name, stack, partial(LlamaCpp, python=args.llama_python, file=file, cores=used))
            for name, file in files.items()
        )
        return [peer for each in up for peer in each]

    yield transformers
    if args.assistant is None:
        absent["transformers assisted"] = "no --assistant was named"
    for name, options in VLLM_MODES.items():
        make = partial(
            VllmServer, python=args.vllm_python, target=pair.target, cores=used, **options
        )
        yield partial(started, name, make=make)
    if args.gguf is None:
        absent["llama.cpp"] = f"{NOT_INSTALLED}: no --gguf was named"
    else:
        yield llama


class Contest:
    """Every contestant answers every question once a turn, in an order that changes by turn."""

    def __init__(
        self,
        contestants: Sequence[Contestant],
        questions: Mapping[str, Sequence[list[int]]],
        streams: int,
        tokens: int,
    ) -> None:
        self._contestants, self._streams, self._tokens = contestants, streams, tokens
        together = [prompt for row in zip(*questions.values(), strict=True) for prompt in row]
        alone = {domain: list(prompts) for domain, prompts in questions.items()}
        self._parts = alone if streams == 1 else {"all": together}
        self._seconds: dict[tuple[str, str], list[float]] = {}  # (part, name) -> one a turn
        self._ids: dict[str, dict[tuple[str, int], list[int]]] = {}  # of the first turn

    def turn(self, number: int) -> None:
        for part, prompts in self._parts.items():
            for contestant in rotated(self._contestants, number):
                taken = 0.0
                for at in range(0, len(prompts), self._streams):
                    asked = prompts[at : at + self._streams]
                    began = time.perf_counter()
                    answers = contestant.answers(asked, self._tokens)
                    taken += time.perf_counter() - began
                    if any(len(ids) != self._tokens for ids in answers):
                        raise SystemExit(
                            f"{contestant.name}: {list(map(len, answers))} tokens, not "
                            f"{self._tokens}"
                        )
                    of = self._ids.setdefault(contestant.name, {})
                    for place, ids in enumerate(answers):
                        of.setdefault((part, at + place), ids)
                self._seconds.setdefault((part, contestant.name), []).append(taken)

    def value(self) -> dict[str, dict[str, Any]]:
        """tok_s: medians, by total time. over: ours over each, the median of the turns' ratios.
        same_ids: share of first-turn answers that equal ours, token by token."""
        names = [contestant.name for contestant in self._contestants]
        rates = {name: self._rates(name, self._parts) for name in names}
        over = {name: _median(ratios(rates[OURS], rates[name])) for name in names if name != OURS}
        value: dict[str, dict[str, Any]] = {
            "tok_s": {name: _median(given) for name, given in rates.items()},
            "over": over,
            "same_ids": {name: self._same(name) for name in over},
            "tokens_a_round": {
                each.name: round(each.committed / each.rounds, 3)
                for each in self._contestants
                if isinstance(each, Ours) and each.rounds
            },
        }
        if len(self._parts) > 1:
            value["over_by_domain"] = {
                name: {
                    part: _median(ratios(self._rates(OURS, [part]), self._rates(name, [part])))
                    for part in self._parts
                }
                for name in over
            }
        return value

    def _rates(self, name: str, parts: Sequence[str] | Mapping[str, Any]) -> list[float]:
        """Tokens a second over all of these parts, one figure a turn."""
        tokens = self._tokens * sum(len(self._parts[part]) for part in parts)
        turns = zip(*(self._seconds[part, name] for part in parts), strict=True)
        return [tokens / sum(taken) for taken in turns]

    def _same(self, name: str) -> float:
        mine = self._ids[OURS]
        return round(sum(self._ids[name][at] == ids for at, ids in mine.items()) / len(mine), 3)


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 3)


if __name__ == "__main__":
    sys.exit(main())
