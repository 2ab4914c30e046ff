"""Real processes of a cell in this event loop, on loopback: what most tests of services begin
with."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import workers

from coordinator.workers.worker import Address, WorkerRole
from dspark.client import AsyncClient


class Cell:
    """Of a pair. Everything is stopped at the end, what came last first."""

    def __init__(self, target: Path | str, drafter: Path | str) -> None:
        self._target, self._drafter = str(target), str(drafter)
        self._ends = AsyncExitStack()
        self.verifiers: list[Any] = []
        self.drafters: list[Any] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._ends.aclose()

    async def verifier(self, **settings: Any) -> Any:
        given = {
            "target": self._target,
            "drafter": self._drafter,
            "name": f"verify/{len(self.verifiers)}",
            **settings,
        }
        self.verifiers.append(await self.begun(workers.verifier(grace_s=0.2, **given)))
        return self.verifiers[-1]

    async def drafter(self, folder: Path | None = None, **settings: Any) -> Any:
        name = f"draft/{len(self.drafters)}"
        made = workers.drafter(folder or self._drafter, grace_s=0.2, name=name, **settings)
        self.drafters.append(await self.begun(made))
        return self.drafters[-1]

    async def coordinator(
        self,
        verifiers: Sequence[Any] | None = None,
        drafters: Sequence[Any] | None = None,
        **settings: Any,
    ) -> Any:
        """Of these workers, or of all that were started here."""
        pools = {
            "verify": self.verifiers if verifiers is None else verifiers,
            "draft": self.drafters if drafters is None else drafters,
        }
        known = {role: tuple(each.endpoint for each in pool) for role, pool in pools.items()}
        given = {"metrics_port": 0, "warm_up_s": 0.0, **known, **settings}
        return await self.begun(workers.coordinator(grace_s=0.2, **given))

    async def whole(self, *, verifiers: int = 1, **settings: Any) -> Any:
        """A coordinator with workers of both pools."""
        for _ in range(verifiers):
            await self.verifier()
        await self.drafter()
        return await self.coordinator(**settings)

    async def frontend(self, coordinator: Any, **settings: Any) -> Any:
        return await self.begun(
            workers.frontend(grace_s=0.2, coordinator=coordinator.endpoint, **settings)
        )

    def client(self, process: Any, **options: Any) -> AsyncClient:
        made = AsyncClient(process.endpoint, **options)
        self._ends.push_async_callback(made.close)
        return made

    def addresses(self) -> list[Address]:
        """Of the workers of both pools, as a deployment announces them."""
        return [
            Address(role, process.endpoint, 0, f"{role.value}/{number}")
            for role, pool in (
                (WorkerRole.VERIFY, self.verifiers),
                (WorkerRole.DRAFT, self.drafters),
            )
            for number, process in enumerate(pool)
        ]

    @property
    def held(self) -> int:
        """Sequences in both pools."""
        return sum(int(each.engine.held.sequences) for each in (*self.verifiers, *self.drafters))

    async def begun(self, serving: workers.Serving) -> Any:
        """What a context starts, until the end."""
        return await self._ends.enter_async_context(serving)
