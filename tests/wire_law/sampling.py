"""Draws answers through a cell, many at a time."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dspark.client import AsyncClient

CONCURRENCY = 16  # requests at a time
CHOICES = 16  # answers of a request


@dataclass
class Sampled:
    """What came: how often each answer, by its prompt's place and its ids, and each text."""

    answers: Counter[tuple[int, tuple[int, ...]]] = field(default_factory=Counter)
    texts: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    accepted: int = 0
    verified: int = 0

    @property
    def tokens_a_round(self) -> float:
        """Committed tokens: accepted drafts and the target's own."""
        return (self.accepted + self.rounds) / max(1, self.rounds)


def sample(
    endpoint: str, prompts: Sequence[Sequence[int]], draws: int, *, first_seed: int, **options: Any
) -> Sampled:
    """At least `draws` answers, to these prompts by turns; each request under a seed of its own."""
    return asyncio.run(_sample(endpoint, prompts, draws, first_seed, options))


async def _sample(
    endpoint: str,
    prompts: Sequence[Sequence[int]],
    draws: int,
    first_seed: int,
    options: dict[str, Any],
) -> Sampled:
    made = Sampled()
    seeds = iter(range(first_seed, first_seed + -(-draws // CHOICES)))
    turns = itertools.cycle(range(len(prompts)))

    async def ask(client: AsyncClient) -> None:
        for seed in seeds:
            which = next(turns)
            answer = await client.complete(
                prompts[which], timeout=300.0, n=CHOICES, seed=seed, **options
            )
            made.answers.update((which, choice.token_ids) for choice in answer.choices)
            made.texts.update(choice.text for choice in answer.choices)
            made.rounds += answer.end.speculation.rounds
            made.accepted += answer.end.speculation.accepted_tokens
            made.verified += answer.end.speculation.verified_tokens

    async with AsyncClient(endpoint) as client, asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(ask(client))
    return made
