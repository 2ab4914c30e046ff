"""The whole system on one machine in a few minutes: start a Ray cluster, stream an answer, measure, clean up.

For each held-out domain the same prompts run plainly (`off`) and speculatively (`greedy`), interleaved, several times.
At temperature 0 both must give the same ids: the demo fails if one token differs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from benchmarks.pair import DOMAINS, ROOT, Pair, Prompt, add_arguments, chosen, distinct
from dspark.client import AsyncClient, Chunk, Client, Completion, Finished

TOKENS = 128
REPETITIONS = 5
PROMPTS = (2, 6)  # fewest and most per domain, for the rates
TAU_PROMPTS = 12  # per domain, for tau
TAU_STREAMS = 8  # at one time; rates are not measured then
BUDGET_S = 165.0
RESULTS = Path(__file__).resolve().parent / "results" / "demo.json"


@dataclass
class Domain:
    """One line of the table."""

    domain: str
    prompts: int
    tau_t0: float  # whole blocks verified, temperature 0, TAU_PROMPTS prompts
    tau_t1: float  # the same at temperature 1
    tokens_per_round_greedy: float  # under the policy `greedy`, temperature 0
    tokens_per_s_off: float  # median over the repetitions, one stream at a time
    tokens_per_s_greedy: float
    ratio: float
    distinct_4: float  # of the answers at temperature 0, mean over TAU_PROMPTS prompts
    same_ids: bool


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="time for the measurement part")
    args = parser.parse_args(argv)
    pair = chosen(args)
    signal.signal(signal.SIGTERM, _leave)  # so that `finally` runs
    with tempfile.TemporaryDirectory(prefix="dspark-demo-") as home:
        os.environ["DSPARK_HOME"] = home
        try:
            _dspark("up", "--target", str(pair.target), "--drafter", str(pair.drafter))
            with Client() as client:
                _stream_one(client, pair)
                domains = _measure(client, pair, args.budget_s)
        except KeyboardInterrupt:
            print("interrupted, taking the cluster down", file=sys.stderr)
            return 130
        finally:
            _clean_up()
    _table(domains)
    same = all(domain.same_ids for domain in domains)
    result = {
        **_machine(),
        "tokens": TOKENS,
        "repetitions": REPETITIONS,
        "domains": [asdict(d) for d in [*domains, _mean(domains)]],
    }
    if args.save:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if args.json:
        print(json.dumps(result))
    print(f"ids at temperature 0 with and without drafts: {'identical' if same else 'DIFFERENT'}")
    return 0 if same else 1


def _leave(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _clean_up() -> None:
    """Nothing keeps the cluster up: neither a second Ctrl-C nor a reader of our output that has left."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _dspark("down")


def _dspark(*words: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(f"$ dspark {' '.join(words)}", flush=True)
    # In a session of its own: Ctrl-C is for this program, which then cleans up in order.
    command = subprocess.Popen([sys.executable, "-m", "dspark.cli.main", *words], start_new_session=True)
    try:
        returned = command.wait()
    except KeyboardInterrupt:  # it cleans up after itself when it is asked to end
        command.terminate()
        command.wait(60)
        raise
    if returned != 0:
        raise SystemExit(f"dspark {words[0]} failed")


def _stream_one(client: Client, pair: Pair) -> None:
    """Shows tokens as they are committed; `|` marks where one round ends."""
    prompt = pair.prompts("code", 1)[0]
    print(f"\nstreaming one answer at temperature 0 (a | after each round's tokens):\n\n{prompt}", end="", flush=True)
    for event in client.generate(prompt, max_tokens=TOKENS, temperature=0.0, ignore_eos=True):
        if isinstance(event, Chunk):
            print(event.text or "".join(f" {token}" for token in event.token_ids), end="|", flush=True)
        elif isinstance(event, Finished):
            spec, times = event.speculation, event.timings
            print(
                f"\n\n{event.usage.completion_tokens} tokens in {spec.rounds} rounds, "
                f"{spec.mean_acceptance_length:.2f} a round; first after {times.ttft_ms:.0f} ms\n",
                flush=True,
            )


def _ask(client: Client, prompt: Prompt, policy: str) -> tuple[Completion, float]:
    began = time.perf_counter()
    answer = client.complete(prompt, max_tokens=TOKENS, temperature=0.0, policy=policy, ignore_eos=True, timeout=120)
    return answer, time.perf_counter() - began


def _measure(client: Client, pair: Pair, budget_s: float) -> list[Domain]:
    began = time.perf_counter()
    block = f"fixed:{client.model_info().block_size}"
    samples = {
        (domain, temperature): asyncio.run(_together(client.endpoint, prompts, block, temperature))
        for domain in DOMAINS
        for prompts in [pair.prompts(domain, TAU_PROMPTS)]
        for temperature in (0.0, 1.0)
    }
    print(f"tau of {TAU_PROMPTS} prompts per domain, {time.perf_counter() - began:.0f} s", flush=True)
    _, first = _ask(client, pair.prompts("code", 1)[0], "off")
    left = budget_s - (time.perf_counter() - began)
    # Per prompt and repetition one answer under either policy; a plain one is the dearer of the two.
    count = max(PROMPTS[0], min(PROMPTS[1], int(left / (len(DOMAINS) * 2 * REPETITIONS * first))))
    prompts = {domain: pair.prompts(domain, count) for domain in DOMAINS}
    seconds: dict[tuple[str, str], list[float]] = {(d, p): [] for d in DOMAINS for p in ("off", "greedy")}
    answers: dict[tuple[str, str], list[Completion]] = {}
    same = dict.fromkeys(DOMAINS, True)
    for repetition in range(REPETITIONS):
        for domain in DOMAINS:
            # Interleaved, and in turns, so that a disturbance of the machine hits both alike.
            for policy in ("off", "greedy") if repetition % 2 == 0 else ("greedy", "off"):
                results = [_ask(client, prompt, policy) for prompt in prompts[domain]]
                seconds[domain, policy].append(sum(taken for _, taken in results))
                given = [answer for answer, _ in results]
                kept = answers.setdefault((domain, policy), given)
                same[domain] &= _ids(given) == _ids(kept)
            same[domain] &= _ids(answers[domain, "off"]) == _ids(answers[domain, "greedy"])
        print(f"  repetition {repetition + 1} of {REPETITIONS}, {time.perf_counter() - began:.0f} s", flush=True)
    rows = []
    for domain in DOMAINS:
        # The first prompts of the batch are those that ran alone: batching must not change an id either.
        same[domain] &= _ids(samples[domain, 0.0])[:count] == _ids(answers[domain, "off"])
        off, greedy = (
            statistics.median(count * TOKENS / taken for taken in seconds[domain, policy])
            for policy in ("off", "greedy")
        )
        rows.append(
            Domain(
                domain=domain,
                prompts=count,
                tau_t0=_tau(samples[domain, 0.0]),
                tau_t1=_tau(samples[domain, 1.0]),
                tokens_per_round_greedy=_tau(answers[domain, "greedy"]),
                tokens_per_s_off=off,
                tokens_per_s_greedy=greedy,
                ratio=greedy / off,
                distinct_4=statistics.mean(distinct(answer.token_ids) for answer in samples[domain, 0.0]),
                same_ids=same[domain],
            )
        )
    return rows


async def _together(endpoint: str, prompts: list[Prompt], policy: str, temperature: float) -> list[Completion]:
    """Answers to all prompts, a few streams at a time."""
    room = asyncio.Semaphore(TAU_STREAMS)

    async def one(client: AsyncClient, number: int, prompt: Prompt) -> Completion:
        async with room:
            return await client.complete(
                prompt,
                max_tokens=TOKENS,
                temperature=temperature,
                seed=1 + number,
                policy=policy,
                ignore_eos=True,
                timeout=120,
            )

    async with AsyncClient(endpoint) as client:
        return list(await asyncio.gather(*(one(client, number, prompt) for number, prompt in enumerate(prompts))))


def _ids(answers: list[Completion]) -> list[tuple[int, ...]]:
    return [tuple(answer.token_ids) for answer in answers]


def _tau(answers: list[Completion]) -> float:
    """Tokens a round over all rounds, the target's own token included."""
    rounds = sum(answer.end.speculation.rounds for answer in answers)
    tokens = sum(answer.end.speculation.mean_acceptance_length * answer.end.speculation.rounds for answer in answers)
    return tokens / rounds if rounds else 1.0


def _machine() -> dict[str, object]:
    try:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        revision = commit.stdout.strip() or "unknown"
    except OSError:
        revision = "unknown"
    return {
        "command": "python -m benchmarks.demo --save",
        "commit": revision,
        "machine": f"{os.cpu_count()} CPU cores, {platform.machine()}, {platform.system()}",
    }


def _table(domains: list[Domain]) -> None:
    print("\ndomain  tau T=0  tau T=1  tok/s off  tok/s greedy  ratio  tokens/round  distinct-4")
    for d in [*domains, _mean(domains)]:
        print(
            f"{d.domain:<6}  {d.tau_t0:7.2f}  {d.tau_t1:7.2f}  {d.tokens_per_s_off:9.1f}  {d.tokens_per_s_greedy:12.1f}"
            f"  {d.ratio:5.2f}  {d.tokens_per_round_greedy:12.2f}  {d.distinct_4:10.2f}"
        )
    print(
        f"tau: tokens a round with whole blocks verified, {TAU_PROMPTS} prompts a domain, {TAU_STREAMS} at a time."
        f"\ntok/s: medians of {REPETITIONS} repetitions, one stream at a time, temperature 0, client included;"
        "\ntokens/round: of those `greedy` runs; distinct-4: share of different 4-token runs in an answer.\n"
    )


def _mean(domains: list[Domain]) -> Domain:
    """Plain means over the domains."""

    def mean(key: str) -> float:
        return statistics.mean(float(getattr(domain, key)) for domain in domains)

    figures = ("tau_t0", "tau_t1", "tokens_per_round_greedy", "tokens_per_s_off", "tokens_per_s_greedy", "ratio")
    return Domain(
        domain="mean",
        prompts=sum(domain.prompts for domain in domains),
        **{key: mean(key) for key in (*figures, "distinct_4")},
        same_ids=all(domain.same_ids for domain in domains),
    )


if __name__ == "__main__":
    sys.exit(main())
