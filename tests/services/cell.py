"""Real processes of a cell in this event loop, on loopback: what most tests of services begin with."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinator import process as coordinator_process
from coordinator.config import CoordinatorConfig, FrontendConfig
from coordinator.frontend import process as frontend_process
from draft_service import process as draft_process
from draft_service.config import DraftConfig
from dspark.client import AsyncClient
from dspark.decoding.reference import RecordedRound
from dspark.types import SamplingParams, Verdict
from verify_service import process as verify_process
from verify_service.config import VerifyConfig


class Cell:
    """Of a pair. Everything is stopped at the end, what came last first."""

    def __init__(self, target: Path | str, drafter: Path | str) -> None:
        self._target, self._drafter = str(target), str(drafter)
        self._kept: list[Any] = []
        self._numbers = {"verify": itertools.count(), "draft": itertools.count()}
        self.verifiers: list[Any] = []
        self.drafters: list[Any] = []

    async def verifier(self, **settings: Any) -> Any:
        given = {"target": self._target, "drafter": self._drafter, "measure_cost": False, **settings}
        name = f"verify/{next(self._numbers['verify'])}"
        self.verifiers.append(self._keep(await verify_process.start(VerifyConfig(**given), name=name)))
        return self.verifiers[-1]

    async def drafter(self, folder: Path | None = None, **settings: Any) -> Any:
        given = {"drafter": str(folder or self._drafter), "measure_cost": False, **settings}
        name = f"draft/{next(self._numbers['draft'])}"
        self.drafters.append(self._keep(await draft_process.start(DraftConfig(**given), name=name)))
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
        return self._keep(await coordinator_process.start(CoordinatorConfig(**known, **{"warm_up_s": 0.0, **settings})))

    async def whole(self, *, verifiers: int = 1, **settings: Any) -> Any:
        """A coordinator with workers of both pools."""
        for _ in range(verifiers):
            await self.verifier()
        await self.drafter()
        return await self.coordinator(**settings)

    async def frontend(self, coordinator: Any, **settings: Any) -> Any:
        given = {"coordinator": coordinator.endpoint, "metrics_port": None, **settings}
        return self._keep(await frontend_process.start(FrontendConfig(**given)))

    def client(self, process: Any, **options: Any) -> AsyncClient:
        return self._keep(AsyncClient(process.endpoint, **options))

    @property
    def held(self) -> int:
        """Sequences in both pools."""
        return sum(int(each.engine.held.sequences) for each in (*self.verifiers, *self.drafters))

    async def close(self) -> None:
        for each in reversed(self._kept):
            await (each.close() if isinstance(each, AsyncClient) else each.stop(0.2))

    def _keep(self, made: Any) -> Any:
        self._kept.append(made)
        return made


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
