"""A cell for tests of the controller: its processes are real health servers in this event loop."""

import asyncio
import itertools
from collections.abc import Collection, Mapping, Set
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2_grpc

from deploy.autoscale import AutoscaleConfig
from deploy.config import ClusterConfig
from deploy.controller import Controller
from deploy.fleet import StartedProcess, StartFailed, Waits
from deploy.probe import ControlAnnouncer
from deploy.topology import ProcessRole, Replica, desired
from dspark.client import CellStatus
from dspark.errors import Unavailable
from tests.waiting import until


class HealthFleet:
    """Every process is a gRPC health server; `broken` names refuse to start."""

    def __init__(self) -> None:
        self.servers: dict[str, grpc.aio.Server] = {}
        self.asked: list[Replica] = []  # for each start
        self.ended: list[str] = []
        self.broken: dict[str, StartFailed] = {}
        self.left: dict[str, StartedProcess] = {}
        self.unplaced: set[str] = set()
        self._incarnations = itertools.count(1)

    def starts(self, name: str) -> list[Mapping[str, Any]]:
        """Settings of each start of it."""
        return [replica.settings for replica in self.asked if replica.name == name]

    async def adopt(self) -> Mapping[str, StartedProcess]:
        return self.left

    async def launch(self, replica: Replica, waits: Waits) -> StartedProcess:
        self.asked.append(replica)
        if replica.name in self.unplaced:
            waits("no node has a GPU", True)
            await asyncio.Event().wait()
        if replica.name in self.broken:
            raise self.broken[replica.name]
        http = f"http://[::1]:800{replica.name[-1]}" if "http" in replica.settings else ""
        return await self.serve(replica.name, http)

    async def serve(self, name: str, http: str = "") -> StartedProcess:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self.servers[name] = server
        return StartedProcess(f"127.0.0.1:{port}", next(self._incarnations), 1, http)

    async def end(self, name: str, grace_s: float) -> None:
        self.ended.append(name)
        await self.crash(name)

    async def crash(self, name: str) -> None:
        server = self.servers.pop(name, None)
        if server is not None:
            await server.stop(0)

    def misfit(self, replicas: Collection[Replica]) -> str:
        return "no node has a GPU" if len(replicas) > 9 else ""


class Listener(ControlAnnouncer):
    """Remembers every announcement; may be deaf. Workers in `needed` have sequences; `cell` is what
    status says."""

    def __init__(self) -> None:
        super().__init__(None)
        self.told: list[dict[str, int]] = [{}]
        self.drained: list[frozenset[str]] = [frozenset()]
        self.needed: set[str] = set()
        self.cell = CellStatus()
        self.deaf = False

    async def announce(
        self,
        coordinator: StartedProcess,
        workers: Mapping[str, tuple[ProcessRole, StartedProcess]],
        draining: Set[str],
    ) -> frozenset[str]:
        if self.deaf:
            raise Unavailable("not yet")
        self.told.append({name: started.incarnation for name, (_, started) in workers.items()})
        self.drained.append(frozenset(draining))
        return frozenset(draining - self.needed)

    async def status(self, coordinator: StartedProcess) -> CellStatus:
        return self.cell


class Cell:
    """A controller of a fleet, which it keeps from `run` on."""

    def __init__(
        self,
        config: ClusterConfig,
        settings: dict[ProcessRole, dict[str, str]],
        autoscale: AutoscaleConfig,
    ) -> None:
        self.fleet, self.listener = HealthFleet(), Listener()
        self.controller = Controller(
            desired(config, settings),
            self.fleet,
            self.listener,
            config,
            autoscale,
        )
        self._keeping: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._keeping = asyncio.create_task(self.controller.run())

    async def run(self) -> None:
        self.begin()
        await self.serves()

    async def serves(self) -> None:
        """Until everybody does."""
        await until(lambda: {*self.phases().values()} == {"serving"})

    async def told(self, *names: str) -> None:
        """Until the coordinator has last been told of these."""
        await until(lambda: self.workers.keys() >= {*names})

    async def looks(self, count: int = 1) -> None:
        """Until the coordinator was told so many times more."""
        wanted = len(self.listener.told) + count
        await until(lambda: len(self.listener.told) >= wanted)

    @property
    def workers(self) -> dict[str, int]:
        """Incarnations of those that the coordinator was last told of."""
        return self.listener.told[-1]

    def phases(self) -> dict[str, str]:
        return {row["name"]: row["phase"] for row in self.controller.report()}

    def row(self, name: str) -> dict[str, Any]:
        return next(row for row in self.controller.report() if row["name"] == name)

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
        await self.controller.close(0.0)
        assert not self.fleet.servers, "close leaves nothing behind"
