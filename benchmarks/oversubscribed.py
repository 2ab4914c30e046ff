"""Half the memory: twice as much key-value cache is wanted as there is, and answers come out as if it were not so.

    python -m benchmarks.oversubscribed

The same requests go through two cells of the same pair, one with room for all and one with pages for half of what the
running sequences come to; the prefix cache is on in both, as it is by default. At temperature 0, and with the coupled
rule, ids must be those of the roomy cell; every request must end. What running out costs is printed beside it:
preemptions, prefills done again, and time.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
import urllib.request
from typing import Any

from benchmarks.pair import DOMAINS, Pair, add_arguments, chosen
from benchmarks.row import Row, note
from deploy.head import free_ports
from deploy.processes import LocalCell
from dspark.client import AsyncClient

SEQUENCES, QUICK = 24, 12
AT_ONCE = 12
PROMPT, ANSWER = 32, 160
PAGE = 16
LAWS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "coupled": {"temperature": 1.0, "seed": 7},
}

Answers = dict[str, list[tuple[int, ...]]]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.oversubscribed", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} requests per law")
    args = parser.parse_args(argv)
    pair = chosen(args)
    count = QUICK if args.quick else SEQUENCES
    whole = [pair.token_ids(p) for domain in DOMAINS for p in pair.prompts(domain, -(-count // len(DOMAINS)))]
    prompts = [(ids * PROMPT)[: PROMPT - n % 9] for n, ids in enumerate(whole[:count])]
    wanted = AT_ONCE * -(-(PROMPT + ANSWER) // PAGE) * PAGE
    roomy, roomy_s, _ = _serve(pair, prompts, 2 * wanted)
    tight, tight_s, counted = _serve(pair, prompts, wanted // 2)
    value: dict[str, object] = {"requests": len(LAWS) * count, "kv_tokens": wanted // 2, "kv_tokens_wanted": wanted}
    for law in LAWS:
        value[f"{law}_differing"] = sum(a != b for a, b in zip(roomy[law], tight[law], strict=True))
    ended = sum(len(answer) == ANSWER for answers in tight.values() for answer in answers)
    value |= {"ended": ended, **counted, "roomy_s": round(roomy_s, 2), "tight_s": round(tight_s, 2)}
    holds = (
        ended == len(LAWS) * count and counted["preemptions"] > 0 and not any(value[f"{law}_differing"] for law in LAWS)
    )
    bar = "every request ends, sequences were preempted, no id differs"
    return Row("3.11", "key-value cache oversubscribed twice", value, bar, holds).show(as_json=args.json)


def _serve(pair: Pair, prompts: list[list[int]], kv_tokens: int) -> tuple[Answers, float, dict[str, int]]:
    """Answers by law, seconds, and what the coordinator counted, with so many token slots."""
    (port,) = free_ports(1)
    verify = {"kv_tokens": kv_tokens, "page_size": PAGE, "dtype": "float32"}
    coordinator = {"metrics_port": port, "max_running": AT_ONCE}
    with LocalCell(pair.target, pair.drafter, verify=verify, coordinator=coordinator) as cell:
        note(f"{len(prompts)} prompts under {len(LAWS)} laws, {kv_tokens} token slots")
        began = time.perf_counter()
        answers = {law: asyncio.run(_ask(cell.endpoint, prompts, options)) for law, options in LAWS.items()}
        took = time.perf_counter() - began
        said = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    return (
        answers,
        took,
        {
            "preemptions": _total(said, r"dspark_num_preemptions_total"),
            "prefills": _total(said, r"dspark_prefills_total\{[^}]*\}"),
            "prefills_again": _total(said, r'dspark_prefills_total\{reason="preempted"\}'),
        },
    )


async def _ask(endpoint: str, prompts: list[list[int]], options: dict[str, Any]) -> list[tuple[int, ...]]:
    async with AsyncClient(endpoint) as client:
        asked = (
            client.complete(prompt, max_tokens=ANSWER, ignore_eos=True, timeout=600, **options) for prompt in prompts
        )
        return [tuple(answer.token_ids) for answer in await asyncio.gather(*asked)]


def _total(said: str, pattern: str) -> int:
    return int(sum(float(value) for value in re.findall(rf"^{pattern} (\S+)$", said, re.MULTILINE)))


if __name__ == "__main__":
    sys.exit(main())
