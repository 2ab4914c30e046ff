"""B3: the default policy over plain decoding, by domain, and the most that drafting could bring.

The shipped pair at temperature 0, all tokens over all time, prompts included, in short alternating
turns: of whole answers at one stream, of streams that ask on at eight, where a turn has a prompt
for 43 tokens. At one stream the bound of a
domain is that of its best fixed length on the same prompts: tokens a round by the acceptance of
every slot (from rounds of seven), over the time of a round of that length, hops included, behind
the same first tokens. That time depends on the length and not on the text, so it is the mean of all
domains. Below 1, drafts do not pay.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.pair import DOMAINS, Pair, Prompt, add_arguments, chosen
from benchmarks.row import Program, Row, note
from deploy.processes import ProcessCell
from dspark.client import AsyncClient, Chunk, Completion, Event, Options

TOKENS, BLOCK = 128, 7
# of each stream in a turn at eight: a machine's speed drifts as much in a long turn as in a short
# one, and of short ones there are more
A_TURN = 64
PROMPTS = {1: 8, 8: 24}  # of a domain, by streams
A_PART = {1: 1, 8: 16}  # prompts of a turn, by streams
TURNS = {1: 8, 8: 36}  # of both policies on every part, by streams
LEAST, OF_BOUND = 0.97, 0.93
DEFAULT = "default"  # the cell's own policy: none is named


@dataclass
class DomainAnswers:
    """Answers of one policy to the prompts of one domain."""

    came: int = 0  # tokens that came in `wall_s`, those of answers that were cut off, too
    tokens: int = 0  # of whole answers, as all below but `wall_s`
    rounds: int = 0
    seconds: float = 0.0  # from the first token of each answer to its last, summed
    wall_s: float = 0.0  # of all streams together, prompts included
    # rounds, by tokens accepted
    accepted: list[int] = field(default_factory=lambda: [0] * (BLOCK + 1))
    ids: list[tuple[int, ...]] = field(default_factory=list)  # of each answer

    def add(self, answer: Completion) -> None:
        spent, timings = answer.end.speculation, answer.end.timings
        self.ids.append(answer.token_ids)
        self.tokens += len(answer.token_ids) - 1  # behind the first, which the prompt's pass gives
        self.rounds += spent.rounds
        self.seconds += (timings.total_ms - timings.ttft_ms) / 1000
        for accepted, rounds in enumerate(spent.acceptance_histogram):
            self.accepted[accepted] += rounds

    def survival(self, slot: int) -> float:
        """Share of rounds in which this slot (from 1) and all before it were accepted."""
        return sum(self.accepted[slot:]) / max(1, sum(self.accepted))


def _options(policy: str, tokens: int) -> Options:
    options: Options = {"temperature": 0.0, "ignore_eos": True, "max_tokens": tokens}
    return options if policy == DEFAULT else options | {"policy": policy}


async def ask(
    client: AsyncClient, prompts: Sequence[Prompt], policy: str, streams: int, into: DomainAnswers
) -> None:
    """Asks the prompts, `streams` at a time, and adds the answers to `into`: all of them at one
    stream, else on and on until A_TURN a stream came."""
    if streams > 1:
        await _on_and_on(client, prompts, policy, streams, into)
        return
    clock = asyncio.get_running_loop().time
    for prompt in prompts:
        began = clock()
        answer = await client.complete(prompt, timeout=120, **_options(policy, TOKENS))
        into.wall_s += clock() - began
        into.add(answer)
        into.came += len(answer.token_ids)


async def _on_and_on(
    client: AsyncClient, prompts: Sequence[Prompt], policy: str, streams: int, into: DomainAnswers
) -> None:
    """So no stream waits for the last one, which drafts for others do not help. First answers are
    cut: answers that all end in one pass would bring all prompts into the next, and plain decoding
    would stay in that step for ever."""
    waiting, enough = itertools.cycle(prompts), asyncio.Event()
    most, clock = into.came + A_TURN * streams, asyncio.get_running_loop().time

    async def user(number: int) -> None:
        tokens = TOKENS * (number + 1) // streams
        while True:
            events: list[Event] = []
            async for event in client.generate(
                next(waiting), timeout=120, **_options(policy, tokens)
            ):
                events.append(event)
                if isinstance(event, Chunk) and not enough.is_set():
                    into.came += len(event.token_ids)
                if into.came >= most:
                    enough.set()
            into.add(Completion.of(events))
            tokens = TOKENS

    began = clock()
    async with asyncio.TaskGroup() as group:
        users = [group.create_task(user(number)) for number in range(streams)]
        await enough.wait()
        into.wall_s += clock() - began
        for task in users:
            task.cancel()


def parts(prompts: Sequence[Prompt], streams: int) -> list[list[Prompt]]:
    """The prompts of each turn: one at one stream, two per stream at eight. Every prompt is in
    equally many parts."""
    a_part = A_PART[streams]
    return [
        [*prompts, *prompts][first : first + a_part] for first in range(0, len(prompts), streams)
    ]


async def in_turns(
    client: AsyncClient, prompts: Sequence[Prompt], streams: int, turns: int
) -> tuple[dict[str, DomainAnswers], float]:
    """Measures plain decoding and the default on the same prompts, part by part, so that a
    disturbance hits both alike; which one begins alternates. Returns both, and the standard error
    of their ratio over the parts."""
    spent = {policy: DomainAnswers() for policy in ("off", DEFAULT)}
    each: list[float] = []
    for turn in range(turns):
        for part in parts(prompts, streams):
            before = {policy: total.wall_s for policy, total in spent.items()}
            for policy in list(spent)[:: -1 if turn % 2 else 1]:
                await ask(client, part, policy, streams, spent[policy])
            off, ours = (total.wall_s - before[policy] for policy, total in spent.items())
            each.append(off / ours)
    return spent, statistics.stdev(each) / math.sqrt(len(each))


def _point(spent: dict[str, DomainAnswers], error: float) -> dict[str, float]:
    off, ours = (total.came / total.wall_s for total in spent.values())
    return {
        "off_tok_s": round(off, 1),
        "tok_s": round(ours, 1),
        "ratio": round(ours / off, 4),
        "error": round(error, 4),
        "tokens_a_round": round(spent[DEFAULT].tokens / max(1, spent[DEFAULT].rounds), 3),
    }


async def at_lengths(client: AsyncClient, prompts: Sequence[Prompt]) -> list[DomainAnswers]:
    """Measures every fixed length on the prompts; plain decoding, of length none, first."""
    spent = {
        policy: DomainAnswers()
        for policy in ("off", *(f"fixed:{slots}" for slots in range(1, BLOCK + 1)))
    }
    for prompt, backwards in zip(prompts, itertools.cycle((False, True)), strict=False):
        for policy in list(spent)[:: -1 if backwards else 1]:
            await ask(client, [prompt], policy, 1, spent[policy])
    return list(spent.values())


def round_times(domains: Iterable[Sequence[DomainAnswers]]) -> list[float]:
    """Seconds of a round of every length, plain decoding's (one token) first."""
    lengths = list(zip(*domains, strict=True))
    seconds = [sum(spent.seconds for spent in length) for length in lengths]
    rounds = [sum(spent.rounds or spent.tokens for spent in length) for length in lengths]
    return [spent / count for spent, count in zip(seconds, rounds, strict=True)]


def bound(plain: DomainAnswers, longest: DomainAnswers, round_s: Sequence[float]) -> dict[str, Any]:
    """The best fixed length's ratio to plain decoding, that length, and the survival of each
    slot."""
    survival = [longest.survival(slot) for slot in range(1, BLOCK + 1)]
    first_s = plain.wall_s - plain.seconds
    times = [
        first_s + plain.tokens * a_round / (1 + sum(survival[:slots]))
        for slots, a_round in enumerate(round_s)
    ]
    best = min(range(1, BLOCK + 1), key=times.__getitem__)
    return {
        "bound": round(times[0] / times[best], 4),
        "best_length": best,
        "survival": [round(share, 4) for share in survival],
    }


async def compare(pair: Pair, turns: Mapping[int, int]) -> dict[str, Any]:
    points: dict[str, dict[str, Any]] = {}
    spent: dict[str, list[DomainAnswers]] = {}
    with ProcessCell(pair.target, pair.drafter) as cell:
        async with AsyncClient(cell.endpoint) as client:
            for policy in ("off", DEFAULT):  # the planner's first rounds are not what is compared
                await ask(client, pair.prompts(DOMAINS[0], 4), policy, 2, DomainAnswers())
            for domain in DOMAINS:
                spent[domain] = await at_lengths(client, pair.prompts(domain, PROMPTS[1]))
                points[domain] = {}
                for streams, count in PROMPTS.items():
                    found = await in_turns(
                        client, pair.prompts(domain, count), streams, turns[streams]
                    )
                    points[domain][f"{streams} stream" + "s" * (streams > 1)] = _point(*found)
                note(f"{domain}: {points[domain]}")
    round_s = round_times(spent.values())
    return {
        "round_ms": [round(1000 * a_round, 2) for a_round in round_s],
        **{
            domain: bound(spent[domain][0], spent[domain][-1], round_s) | points[domain]
            for domain in DOMAINS
        },
    }


def main(argv: list[str] | None = None) -> int:
    """Prints its row; 1 when the bar is missed."""
    parser = Program("by_domain", __doc__)
    add_arguments(parser)
    parser.add_argument("--times", type=int, default=1, help="as many turns")
    args = parser.parse_args(argv)
    turns = {streams: count * args.times for streams, count in TURNS.items()}
    value = asyncio.run(compare(chosen(args), turns))
    holds = all(
        point["1 stream"]["ratio"] >= max(LEAST, OF_BOUND * point["bound"])
        and point["8 streams"]["ratio"] >= LEAST
        for point in map(value.__getitem__, DOMAINS)
    )
    bar = f"never below {LEAST} of off; at one stream {OF_BOUND} of the bound"
    return Row(
        "B3", "default policy over off by domain, shipped pair, tok/s", value, bar, holds
    ).show(as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
