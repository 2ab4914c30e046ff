"""Real processes of a cell in this event loop, on loopback: what most tests of services begin with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import workers

from dspark.client import AsyncClient
from dspark.decoding.reference import RecordedRound
from dspark.types import SamplingParams, Verdict


class Cell:
    """Of a pair. Everything is stopped at the end, what came last first."""

    def __init__(self, target: Path | str, drafter: Path | str) -> None:
        self._target, self._drafter = str(target), str(drafter)
        self._ends = AsyncExitStack()
        self.verifiers: list[Any] = []
        self.drafters: list[Any] = []

    async def verifier(self, **settings: Any) -> Any:
        given = {"target": self._target, "drafter": self._drafter, "name": f"verify/{len(self.verifiers)}", **settings}
        self.verifiers.append(await self._begun(workers.verifier(grace_s=0.2, **given)))
        return self.verifiers[-1]

    async def drafter(self, folder: Path | None = None, **settings: Any) -> Any:
        name = f"draft/{len(self.drafters)}"
        made = workers.drafter(folder or self._drafter, grace_s=0.2, name=name, **settings)
        self.drafters.append(await self._begun(made))
        return self.drafters[-1]

    async def coordinator(
        self, verifiers: Sequence[Any] | None = None, drafters: Sequence[Any] | None = None, **settings: Any
    ) -> Any:
        """Of these workers, or of all that were started here."""
        pools = {
            "verify": self.verifiers if verifiers is None else verifiers,
            "draft": self.drafters if drafters is None else drafters,
        }
        known = {role: tuple(each.endpoint for each in pool) for role, pool in pools.items()}
        given = {"metrics_port": 0, "warm_up_s": 0.0, **known, **settings}
        return await self._begun(workers.coordinator(grace_s=0.2, **given))

    async def whole(self, *, verifiers: int = 1, **settings: Any) -> Any:
        """A coordinator with workers of both pools."""
        for _ in range(verifiers):
            await self.verifier()
        await self.drafter()
        return await self.coordinator(**settings)

    async def frontend(self, coordinator: Any, **settings: Any) -> Any:
        return await self._begun(workers.frontend(grace_s=0.2, coordinator=coordinator.endpoint, **settings))

    def client(self, process: Any, **options: Any) -> AsyncClient:
        made = AsyncClient(process.endpoint, **options)
        self._ends.push_async_callback(made.close)
        return made

    @property
    def held(self) -> int:
        """Sequences in both pools."""
        return sum(int(each.engine.held.sequences) for each in (*self.verifiers, *self.drafters))

    async def close(self) -> None:
        await self._ends.aclose()

    async def _begun(self, serving: workers.Serving) -> Any:
        return await self._ends.enter_async_context(serving)


class Recorded:
    """The rounds that a verifier judged, by (seed, choice) of their parameters. Changes nothing of them."""

    def __init__(self, engine: Any) -> None:
        self.rounds: dict[tuple[int, int], list[RecordedRound]] = defaultdict(list)
        self._engine, self._begin, self._end = engine, engine.begin, engine.end
        self._under_way: dict[int, list[tuple[Any, SamplingParams]]] = {}  # by step: items and their parameters
        engine.begin, engine.end = self._begun, self._ended

    def _begun(self, items: Any) -> Any:
        step = self._begin(items)
        states = self._engine._holdings.states
        self._under_way[id(step)] = [(item, states[item.cursor.sequence].params) for item in items]
        return step

    def _ended(self, step: Any) -> Any:
        judged = self._end(step)
        for (item, params), outcome in zip(self._under_way.pop(id(step), ()), judged.outcomes, strict=True):
            assert isinstance(outcome, Verdict), outcome
            made = RecordedRound(
                item.cursor.anchor_position,
                item.draft_ids,
                item.q,
                len(item.draft_ids),
                outcome.accepted,
                outcome.next_token,
                item.cursor.epoch,
            )
            self.rounds[params.seed, params.choice].append(made)
        return judged
