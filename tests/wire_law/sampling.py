"""Draws answers through a cell, many at a time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dspark.client import AsyncClient
from tests.wire_law.settings import LENGTH, PROMPTS, VOCABULARY, Setting

CONCURRENCY = 16  # requests at a time
CHOICES = 16  # answers of a request
_PLACES = VOCABULARY ** np.arange(LENGTH - 1, -1, -1)


@dataclass(frozen=True)
class Sampled:
    """What came of one setting."""

    counts: npt.NDArray[np.int64]  # [prompts, V ** length]
    rounds: int
    accepted: int
    verified: int

    @property
    def tokens_a_round(self) -> float:
        """Committed tokens: accepted drafts and the target's own."""
        return (self.accepted + self.rounds) / max(1, self.rounds)


def sample(
    endpoint: str,
    setting: Setting,
    draws: int,
    *,
    first_seed: int,
    told: Callable[[int], None] = lambda _: None,
) -> Sampled:
    """At least `draws` answers of a setting, each request under a seed of its own; `told` hears how
    many came."""
    return asyncio.run(_sample(endpoint, setting, draws, first_seed, told))


async def _sample(
    endpoint: str, setting: Setting, draws: int, first_seed: int, told: Callable[[int], None]
) -> Sampled:
    counts = np.zeros((len(PROMPTS), VOCABULARY**LENGTH), np.int64)
    sums = dict.fromkeys(("rounds", "accepted_tokens", "verified_tokens"), 0)
    seeds = iter(range(first_seed, first_seed + -(-draws // CHOICES)))
    turns = itertools.cycle(range(len(PROMPTS)))

    async def ask(client: AsyncClient) -> None:
        for seed in seeds:
            which = next(turns)
            answer = await client.complete(
                PROMPTS[which],
                timeout=120.0,
                max_tokens=LENGTH,
                n=CHOICES,
                seed=seed,
                ignore_eos=True,
                rule=setting.rule,
                policy=setting.policy,
                **setting.options,
            )
            ids = np.array([choice.token_ids for choice in answer.choices], np.int64)
            np.add.at(counts[which], ids @ _PLACES, 1)
            for name in sums:
                sums[name] += getattr(answer.end.speculation, name)
            told(len(ids))

    async with AsyncClient(endpoint) as client, asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(ask(client))
    return Sampled(counts, sums["rounds"], sums["accepted_tokens"], sums["verified_tokens"])
