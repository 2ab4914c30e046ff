"""Real processes of a cell in this event loop, on loopback."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import grpc

from coordinator.config import CoordinatorConfig
from coordinator.workers.worker import Address, WorkerRole
from dspark.client import AsyncClient
from dspark.runtime.channel import health_of, sync_channel
from tests.services import workers
from tests.waiting import PATIENCE_S, until


async def health(process: Any, service: str) -> str:
    with sync_channel(process.endpoint) as channel:
        return await asyncio.to_thread(health_of, channel, service)


async def says(process: Any, service: str, wanted: str) -> None:
    """Until it says so of its health."""
    async with asyncio.timeout(PATIENCE_S):
        while await health(process, service) != wanted:
            pass


async def ended(call: Any) -> tuple[grpc.StatusCode, str]:
    """How the other side ends a stream, whatever it says before."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await asyncio.wait_for(call.read(), 20) is not grpc.aio.EOF:
            pass
    return await call.code(), await call.details()


@contextlib.asynccontextmanager
async def standing_in(
    add: Callable[[Any, grpc.aio.Server], None], servicer: Any
) -> AsyncIterator[str]:
    """A server of that alone, by its endpoint, in the place of a process."""
    server = grpc.aio.server()
    add(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


class Cell:
    """Of a target and its drafter, or of synthetic workers that a file describes (`pair`).

    Everything is stopped at the end, what came last first. shared: settings of every process.
    """

    def __init__(
        self,
        target: Path | str = "",
        drafter: Path | str = "",
        *,
        pair: Path | str = "",
        shared: Mapping[str, Any] | None = None,
    ) -> None:
        self._shared = dict(shared or {})
        simulated = workers.simulated(pair) if pair else {}
        self._warm_up_s = CoordinatorConfig.warm_up_s if pair else 0.0
        files = {"target": str(target), "drafter": str(drafter)}
        self._verify = {**(simulated or files), **self._shared}
        self._draft = {**(simulated or {"path": str(drafter)}), **self._shared}
        self._ends = AsyncExitStack()
        self.verifiers: list[Any] = []
        self.drafters: list[Any] = []
        self.serving: Any = None  # the coordinator that came last

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._ends.aclose()

    async def verifier(self, **settings: Any) -> Any:
        return await self._worker(workers.verifier, self.verifiers, {**self._verify, **settings})

    async def drafter(self, **settings: Any) -> Any:
        return await self._worker(workers.drafter, self.drafters, {**self._draft, **settings})

    async def _worker(
        self, start: Callable[..., workers.Serving], pool: list[Any], settings: dict[str, Any]
    ) -> Any:
        role = "verify" if pool is self.verifiers else "draft"
        given = {"name": f"{role}/{len(pool)}", **settings}
        pool.append(await self.begun(start(**given)))
        return pool[-1]

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
        given = {"warm_up_s": self._warm_up_s, **known, **self._shared, **settings}
        self.serving = await self.begun(workers.coordinator(**given))
        return self.serving

    async def whole(
        self, *, verifiers: int = 1, verify: Mapping[str, Any] | None = None, **settings: Any
    ) -> Any:
        """A coordinator with workers of both pools. verify: settings of the verifiers."""
        for _ in range(verifiers):
            await self.verifier(**(verify or {}))
        await self.drafter()
        return await self.coordinator(**settings)

    async def frontend(self, **settings: Any) -> Any:
        """Before the coordinator."""
        given = {"coordinator": self.serving.endpoint, **self._shared, **settings}
        return await self.begun(workers.frontend(**given))

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
    def running(self) -> int:
        """Answers that the coordinator runs or keeps in line."""
        admission = self.serving.cell.admission
        return int(admission.running + admission.queued)

    @property
    def held(self) -> int:
        """Sequences in both pools."""
        return sum(int(each.engine.held.sequences) for each in (*self.verifiers, *self.drafters))

    async def freed(self) -> None:
        """Until neither the coordinator, if there is one, nor a pool holds anything."""
        await until(lambda: not self.held and (self.serving is None or not self.running))
        # a pass may be under way that has them
        await until(lambda: not any(each.engine.held.pages_held for each in self.verifiers))

    async def begun(self, serving: workers.Serving) -> Any:
        """What a context starts, until the end."""
        return await self._ends.enter_async_context(serving)
