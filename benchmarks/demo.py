"""The whole system on one machine in a few minutes: start a Ray cluster, chat, compare plain decoding, clean up.

First a short conversation, streamed. Then the same questions of every domain are answered plainly (`off`) and by the
default policy, in turns. At temperature 0 both must give the same ids: the demo fails if one token differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from benchmarks.pair import DOMAINS, Pair, Prompt, add_arguments, chosen
from coordinator.http.template import find_template
from dspark.client import Chunk, Client, Completion, Finished, Options

TURNS = ("Hello! Who are you?", "Name three fruits that are red.", "How do I make a salad of them?")
ANSWER = 80  # tokens of an answer in the conversation, most
TOKENS, REPETITIONS = 96, 2  # of the comparison: tokens of an answer, most, and how often each question is asked
DEFAULT = "default"  # the cell's own policy: none is named
PROMPTS = (1, 3)  # fewest and most of a domain
BUDGET_S = 120.0
RESULTS = Path(__file__).resolve().parent / "results" / "demo.json"
ROOT = Path(__file__).resolve().parent.parent


@dataclass
class DomainRow:
    """One line of the table. Rates are all tokens over all time, one stream, client included."""

    domain: str
    prompts: int
    tokens_per_round: float  # under the default policy
    tokens_per_s_off: float
    tokens_per_s: float
    ratio: float
    same_ids: bool


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="time for the comparison")
    args = parser.parse_args(argv)
    pair = chosen(args)
    signal.signal(signal.SIGTERM, _leave)  # so that `finally` runs
    with tempfile.TemporaryDirectory(prefix="dspark-demo-") as home:
        os.environ["DSPARK_HOME"] = home
        try:
            _dspark("up", "--target", str(pair.target), "--drafter", str(pair.drafter))
            with Client() as client:
                _chat(client, pair)
                domains = _compare(client, pair, args.budget_s)
        except KeyboardInterrupt:
            print("interrupted, taking the cluster down", file=sys.stderr)
            return 130
        finally:
            _clean_up()
    same = all(domain.same_ids for domain in domains)
    result = {
        **_machine(),
        "tokens": TOKENS,
        "repetitions": REPETITIONS,
        "domains": [asdict(domain) for domain in domains],
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


def _chat(client: Client, pair: Pair) -> None:
    """A conversation, every answer as it is written."""
    template = find_template(str(pair.target), None)
    if template is None:
        raise SystemExit(f"{pair.target}: no chat template")
    said: list[Mapping[str, str]] = []
    for turn in TURNS:
        print(f"\n> {turn}\n", flush=True)
        said.append({"role": "user", "content": turn})
        prompt, answer = template.render(said, {}, add_generation_prompt=True), ""
        for event in client.generate(prompt, max_tokens=ANSWER, temperature=0.0):
            if isinstance(event, Chunk):
                answer += event.text
                print(event.text, end="", flush=True)
            elif isinstance(event, Finished):
                tokens, spec = event.usage.completion_tokens, event.speculation
                print(
                    f"\n\n  [{tokens} tokens in {spec.rounds} rounds, {spec.mean_acceptance_length:.2f} a round; "
                    f"first after {event.timings.ttft_ms:.0f} ms]",
                    flush=True,
                )
        said.append({"role": "assistant", "content": answer})


def _ask(client: Client, prompt: Prompt, policy: str) -> tuple[Completion, float]:
    options: Options = {"max_tokens": TOKENS, "temperature": 0.0}
    if policy != DEFAULT:
        options["policy"] = policy
    began = time.perf_counter()
    answer = client.complete(prompt, timeout=120, **options)
    return answer, time.perf_counter() - began


def _compare(client: Client, pair: Pair, budget_s: float) -> list[DomainRow]:
    print("\nthe same questions without drafts and with them, in turns ...", flush=True)
    _, first = _ask(client, pair.prompts(DOMAINS[0], 1)[0], "off")
    count = max(PROMPTS[0], min(PROMPTS[1], int(budget_s / (len(DOMAINS) * 2 * REPETITIONS * first))))
    print("\ndomain     prompts  tokens a round  tok/s off  tok/s  ratio", flush=True)
    domains = []
    for name in DOMAINS:
        row = _domain(client, name, pair.prompts(name, count))
        print(
            f"{row.domain:<9}  {row.prompts:7}  {row.tokens_per_round:14.2f}  {row.tokens_per_s_off:9.1f}"
            f"  {row.tokens_per_s:5.1f}  {row.ratio:5.2f}",
            flush=True,
        )
        domains.append(row)
    print(f"one stream, temperature 0, at most {TOKENS} tokens an answer, {REPETITIONS} times; client included\n")
    return domains


def _domain(client: Client, domain: str, prompts: Sequence[Prompt]) -> DomainRow:
    answers: dict[str, list[Completion]] = {"off": [], DEFAULT: []}
    seconds = dict.fromkeys(answers, 0.0)
    for repetition in range(REPETITIONS):
        for prompt in prompts:
            # In turns, so that a disturbance of the machine hits both alike.
            for policy in ("off", DEFAULT) if repetition % 2 == 0 else (DEFAULT, "off"):
                answer, taken = _ask(client, prompt, policy)
                answers[policy].append(answer)
                seconds[policy] += taken
    off, ours = (sum(len(each.token_ids) for each in answers[p]) / seconds[p] for p in ("off", DEFAULT))
    spent = [answer.end.speculation for answer in answers[DEFAULT]]
    rounds = sum(each.rounds for each in spent)
    committed = sum(each.mean_acceptance_length * each.rounds for each in spent)
    off_ids, ids = ([tuple(answer.token_ids) for answer in answers[policy]] for policy in ("off", DEFAULT))
    return DomainRow(
        domain=domain,
        prompts=len(prompts),
        tokens_per_round=committed / rounds if rounds else 1.0,
        tokens_per_s_off=off,
        tokens_per_s=ours,
        ratio=ours / off,
        same_ids=off_ids == ids == ids[: len(prompts)] * REPETITIONS,
    )


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


if __name__ == "__main__":
    sys.exit(main())
