"""Tokens a second of two cells in turns: workers of one thread each, and workers that divide the
processors, as is the default (ADR 31)."""

from __future__ import annotations

import asyncio
import statistics
from contextlib import AsyncExitStack, ExitStack

from benchmarks.by_domain import DEFAULT, DomainAnswers, ask
from benchmarks.pair import Pair
from benchmarks.row import Row, note
from benchmarks.turns import ratios
from deploy.processes import ProcessCell
from dspark.client import AsyncClient

PROMPTS = {1: 2, 8: 16}  # a turn, by streams
TURNS = {1: 4, 8: 2}
CELLS = {"one": {"threads": 1}, "divided": {}}
LEAST = 1.0


async def _rate(client: AsyncClient, pair: Pair, domain: str, policy: str, streams: int) -> float:
    spent = DomainAnswers()
    await ask(client, pair.prompts(domain, PROMPTS[streams]), policy, streams, spent)
    return spent.came / spent.wall_s


async def compare(pair: Pair) -> dict[str, dict[str, float]]:
    """Medians by streams, domain and policy; the ratio is the median over pairs of turns."""
    table: dict[str, dict[str, float]] = {}
    with ExitStack() as cells:
        endpoints = {
            name: cells.enter_context(ProcessCell(pair.target, pair.drafter, verify=given)).endpoint
            for name, given in CELLS.items()
        }
        async with AsyncExitStack() as stack:
            clients = {
                name: await stack.enter_async_context(AsyncClient(endpoint))
                for name, endpoint in endpoints.items()
            }
            for client in clients.values():
                for policy in ("off", DEFAULT):  # first rounds are not what is compared
                    await ask(client, pair.prompts("code", 4), policy, 2, DomainAnswers())
            for streams, turns in TURNS.items():
                for domain in ("code", "chat"):
                    for policy in ("off", DEFAULT):
                        rates: dict[str, list[float]] = {name: [] for name in clients}
                        for turn in range(turns):
                            for name in list(clients)[:: -1 if turn % 2 else 1]:
                                rates[name].append(
                                    await _rate(clients[name], pair, domain, policy, streams)
                                )
                        each = ratios(rates["divided"], rates["one"])
                        found = {
                            name: round(statistics.median(all_), 1) for name, all_ in rates.items()
                        }
                        key = f"{streams} stream{'s' * (streams > 1)}, {domain}, {policy}"
                        table[key] = {**found, "ratio": round(statistics.median(each), 3)}
                        note(f"{key}: {table[key]}")
    return table


def row(pair: Pair) -> Row:
    table = asyncio.run(compare(pair))
    holds = all(found["ratio"] >= LEAST for found in table.values())
    return Row(
        "B11",
        "tokens a second where processors are divided, over one thread each",
        table,
        ">= 1",
        holds,
    )
