"""The whole system on one machine in a few minutes: start a Ray cluster, stream an answer, measure, clean up.

For each held-out domain the same prompts run plainly (`off`) and speculatively (`greedy`), interleaved, several times.
At temperature 0 both must give the same ids: the demo fails if one token differs.
"""

from __future__ import annotations

import argparse
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
from dspark.client import Chunk, Client, Completion

TOKENS = 128
REPETITIONS = 5
PROMPTS = (2, 6)  # fewest and most per domain
BUDGET_S = 90.0
RESULTS = Path(__file__).resolve().parent / "results" / "demo.json"


@dataclass
class Domain:
    """One line of the table; rates are medians over the repetitions, one stream at a time."""

    domain: str
    prompts: int
    tau_t0: float
    tau_t1: float
    tokens_per_s_off: float
    tokens_per_s_greedy: float
    ratio: float
    distinct_4: float
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
                machine = _machine()
        except KeyboardInterrupt:
            print("interrupted, taking the cluster down", file=sys.stderr)
            return 130
        finally:
            _dspark("down")
    _table(domains)
    same = all(domain.same_ids for domain in domains)
    result = {**machine, "tokens": TOKENS, "repetitions": REPETITIONS, "domains": [asdict(d) for d in domains]}
    if args.save:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if args.json:
        print(json.dumps(result))
    print(f"ids at temperature 0 with and without drafts: {'identical' if same else 'DIFFERENT'}")
    return 0 if same else 1


def _leave(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _dspark(*words: str) -> None:
    print(f"$ dspark {' '.join(words)}", flush=True)
    # In a session of its own: Ctrl-C is for this program, which then cleans up in order.
    result = subprocess.run([sys.executable, "-m", "dspark.cli.main", *words], start_new_session=True)
    if result.returncode != 0:
        raise SystemExit(f"dspark {words[0]} failed")


def _stream_one(client: Client, pair: Pair) -> None:
    """Shows tokens as they are committed; `|` marks where one round ends."""
    prompt = pair.prompts("code", 1)[0]
    print(f"\nstreaming one answer at temperature 0 (a | after each round's tokens):\n\n{prompt}", end="", flush=True)
    for event in client.generate(prompt, max_tokens=TOKENS, temperature=0.0, ignore_eos=True):
        if isinstance(event, Chunk):
            print(event.text or "".join(f" {token}" for token in event.token_ids), end="|", flush=True)
        else:
            spec, times = event.speculation, event.timings
            print(
                f"\n\n{event.usage.completion_tokens} tokens in {spec.rounds} rounds, "
                f"{spec.mean_acceptance_length:.2f} a round; first after {times.ttft_ms:.0f} ms\n",
                flush=True,
            )


def _ask(client: Client, prompt: Prompt, policy: str, temperature: float, seed: int) -> tuple[Completion, float]:
    began = time.perf_counter()
    answer = client.complete(
        prompt, max_tokens=TOKENS, temperature=temperature, seed=seed, policy=policy, ignore_eos=True, timeout=120
    )
    return answer, time.perf_counter() - began


def _measure(client: Client, pair: Pair, budget_s: float) -> list[Domain]:
    began = time.perf_counter()
    _, first = _ask(client, pair.prompts("code", 1)[0], "off", 0.0, 0)
    # Per prompt: REPETITIONS times two policies at temperature 0, once at 1; one plain answer is the dearest of them.
    affordable = int(budget_s / (len(DOMAINS) * (2 * REPETITIONS + 1) * first))
    count = max(PROMPTS[0], min(PROMPTS[1], affordable))
    print(
        f"measuring {len(DOMAINS)} domains, {count} prompts of {TOKENS} tokens, {REPETITIONS} repetitions", flush=True
    )
    prompts = {domain: pair.prompts(domain, count) for domain in DOMAINS}
    seconds: dict[tuple[str, str], list[float]] = {(d, p): [] for d in DOMAINS for p in ("off", "greedy")}
    answers: dict[tuple[str, str], list[Completion]] = {}
    same = dict.fromkeys(DOMAINS, True)
    for repetition in range(REPETITIONS):
        for domain in DOMAINS:
            # Interleaved, and in turns, so that a disturbance of the machine hits both alike.
            for policy in ("off", "greedy") if repetition % 2 == 0 else ("greedy", "off"):
                results = [_ask(client, prompt, policy, 0.0, 0) for prompt in prompts[domain]]
                seconds[domain, policy].append(sum(taken for _, taken in results))
                given = [answer for answer, _ in results]
                kept = answers.setdefault((domain, policy), given)
                same[domain] &= [a.token_ids for a in given] == [a.token_ids for a in kept]
            same[domain] &= [a.token_ids for a in answers[domain, "off"]] == [
                a.token_ids for a in answers[domain, "greedy"]
            ]
        print(f"  repetition {repetition + 1} of {REPETITIONS}, {time.perf_counter() - began:.0f} s", flush=True)
    rows = []
    for domain in DOMAINS:
        sampled = [_ask(client, prompt, "greedy", 1.0, 1 + n)[0] for n, prompt in enumerate(prompts[domain])]
        off, greedy = (
            statistics.median(count * TOKENS / taken for taken in seconds[domain, policy])
            for policy in ("off", "greedy")
        )
        rows.append(
            Domain(
                domain=domain,
                prompts=count,
                tau_t0=_tau(answers[domain, "greedy"]),
                tau_t1=_tau(sampled),
                tokens_per_s_off=off,
                tokens_per_s_greedy=greedy,
                ratio=greedy / off,
                distinct_4=statistics.mean(distinct(answer.token_ids) for answer in answers[domain, "greedy"]),
                same_ids=same[domain],
            )
        )
    return rows


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
    print("\ndomain  tau T=0  tau T=1  tok/s off  tok/s greedy  ratio  distinct-4")
    for d in domains:
        print(
            f"{d.domain:<6}  {d.tau_t0:7.2f}  {d.tau_t1:7.2f}  {d.tokens_per_s_off:9.1f}  {d.tokens_per_s_greedy:12.1f}"
            f"  {d.ratio:5.2f}  {d.distinct_4:10.2f}"
        )
    print("(medians of 5 repetitions, one stream at a time; tau: tokens a round)\n")


if __name__ == "__main__":
    sys.exit(main())
