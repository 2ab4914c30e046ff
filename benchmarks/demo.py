"""The whole system on one machine in a few minutes: start a Ray cluster, chat, compare plain
decoding, clean up.

First a short conversation, streamed. Then the same questions of every domain are answered plainly
(`off`) and by the default policy, in turns. At temperature 0 both must give the same ids: the demo
fails if one token differs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.by_domain import DEFAULT, TOKENS, DomainAnswers, ask, in_turns
from benchmarks.pair import DOMAINS, Pair, add_arguments, chosen
from benchmarks.row import Program
from coordinator.http.template import find_template
from dspark.client import AsyncClient, Chunk, Client, Finished
from dspark.loadgen.report import machine

TURNS = ("Hello! Who are you?", "Name three fruits that are red.", "How do I make a salad of them?")
ANSWER = 80  # tokens of an answer in the conversation, most
REPETITIONS = 2  # of each question of the comparison
PROMPTS = (1, 3)  # fewest and most of a domain
BUDGET_S = 120.0
RESULTS = Path(__file__).resolve().parent / "results" / "demo.json"
ROOT = Path(__file__).resolve().parent.parent


def main(argv: list[str] | None = None) -> int:
    parser = Program("demo", __doc__)
    add_arguments(parser)
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="time for the comparison")
    args = parser.parse_args(argv)
    pair = chosen(args)
    with tempfile.TemporaryDirectory(prefix="dspark-demo-") as home:
        os.environ["DSPARK_HOME"] = home
        try:
            _dspark("up", "--target", str(pair.target), "--drafter", str(pair.drafter))
            with Client() as client:
                _chat(client, pair)
            domains = asyncio.run(_compare(pair, args.budget_s))
        except KeyboardInterrupt:
            print("interrupted, taking the cluster down", file=sys.stderr)
            return 130
        finally:
            _clean_up()
    same = all(domain["same_ids"] for domain in domains)
    result = {
        "command": "python -m benchmarks.demo --save",
        **machine(),
        "tokens": TOKENS,
        "repetitions": REPETITIONS,
        "domains": domains,
    }
    if args.save:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if args.json:
        print(json.dumps(result))
    print(f"ids at temperature 0 with and without drafts: {'identical' if same else 'DIFFERENT'}")
    return 0 if same else 1


def _clean_up() -> None:
    """Takes the cluster down, even at a second Ctrl-C or when the reader of our output has left."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _dspark("down")


def _dspark(*words: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(f"$ dspark {' '.join(words)}", flush=True)
    # In a session of its own: Ctrl-C is for this program, which then cleans up in order.
    command = subprocess.Popen(
        [sys.executable, "-m", "dspark.cli.main", *words], start_new_session=True
    )
    try:
        returned = command.wait()
    except BaseException:  # it cleans up after itself on SIGTERM
        command.terminate()
        command.wait(60)
        raise
    if returned != 0:
        raise SystemExit(f"dspark {words[0]} failed")


def _chat(client: Client, pair: Pair) -> None:
    """Holds a conversation and prints every answer as it is written."""
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
                    f"\n\n  [{tokens} tokens in {spec.rounds} rounds, "
                    f"{spec.mean_acceptance_length:.2f} a round; "
                    f"first after {event.timings.ttft_ms:.0f} ms]",
                    flush=True,
                )
        said.append({"role": "assistant", "content": answer})


async def _compare(pair: Pair, budget_s: float) -> list[dict[str, Any]]:
    print("\nthe same questions without drafts and with them, in turns ...", flush=True)
    async with AsyncClient() as client:
        await ask(client, pair.prompts(DOMAINS[0], 1), "off", 1, first := DomainAnswers())
        count = int(budget_s / (len(DOMAINS) * 2 * REPETITIONS * first.wall_s))
        count = max(PROMPTS[0], min(PROMPTS[1], count))
        print("\ndomain     prompts  tokens a round  tok/s off  tok/s  ratio", flush=True)
        domains = []
        for name in DOMAINS:
            spent, _ = await in_turns(client, pair.prompts(name, count), 1, REPETITIONS)
            domains.append(_row(name, count, spent["off"], spent[DEFAULT]))
    print(
        f"one stream, temperature 0, {TOKENS} tokens an answer, {REPETITIONS} times; client "
        "included\n"
    )
    return domains


def _row(domain: str, prompts: int, plain: DomainAnswers, drafted: DomainAnswers) -> dict[str, Any]:
    """One line of the table. Rates are all tokens over all time, one stream, client included."""
    off, ours = (sum(map(len, spent.ids)) / spent.wall_s for spent in (plain, drafted))
    tokens_per_round = drafted.tokens / drafted.rounds if drafted.rounds else 1.0
    print(
        f"{domain:<9}  {prompts:7}  {tokens_per_round:14.2f}  {off:9.1f}  {ours:5.1f}  "
        f"{ours / off:5.2f}",
        flush=True,
    )
    return {
        "domain": domain,
        "prompts": prompts,
        "tokens_per_round": tokens_per_round,
        "tokens_per_s_off": off,
        "tokens_per_s": ours,
        "ratio": ours / off,
        "same_ids": plain.ids == drafted.ids == drafted.ids[:prompts] * REPETITIONS,
    }


if __name__ == "__main__":
    sys.exit(main())
