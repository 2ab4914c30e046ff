"""The controller over a fleet whose processes are real health servers in this event loop."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Set

import grpc
import pytest
from grpc_health.v1 import health, health_pb2_grpc

from deploy import controller as controller_module
from deploy.autoscale import AutoscaleConfig
from deploy.config import ClusterConfig
from deploy.controller import Controller
from deploy.fleet import Announced, Pending, StartedProcess, StartFailed
from deploy.topology import ProcessRole, Replica, desired
from dspark.client import CellStatus, LaneStatus
from dspark.errors import ConfigError, Unavailable


class HealthFleet:
    """Every process is a gRPC health server; `broken` names refuse to start."""

    def __init__(self) -> None:
        self.servers: dict[str, grpc.aio.Server] = {}
        self.started: list[str] = []
        self.ended: list[str] = []
        self.broken: dict[str, StartFailed] = {}
        self.left: dict[str, StartedProcess] = {}
        self.unplaced: set[str] = set()
        self._incarnations = itertools.count(1)

    async def adopt(self) -> Mapping[str, StartedProcess]:
        return self.left

    async def launch(self, replica: Replica) -> StartedProcess:
        self.started.append(replica.name)
        if replica.name in self.unplaced:
            await asyncio.Event().wait()
        if replica.name in self.broken:
            raise self.broken[replica.name]
        return await self.serve(replica.name)

    async def serve(self, name: str) -> StartedProcess:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self.servers[name] = server
        return StartedProcess(f"127.0.0.1:{port}", next(self._incarnations), 1)

    async def end(self, name: str, grace_s: float) -> None:
        self.ended.append(name)
        await self.crash(name)

    async def crash(self, name: str) -> None:
        server = self.servers.pop(name, None)
        if server is not None:
            await server.stop(0)

    def pending(self, name: str) -> Pending:
        return Pending("no node has a GPU", name in self.unplaced)


class Listener:
    """Remembers every announcement; may be deaf. Workers in `needed` have sequences; `cell` is what status says."""

    def __init__(self) -> None:
        self.told: list[dict[str, int]] = []
        self.drained: list[frozenset[str]] = []
        self.needed: set[str] = set()
        self.cell = CellStatus()
        self.deaf = False

    async def announce(
        self, coordinator: StartedProcess, workers: Mapping[str, tuple[ProcessRole, StartedProcess]], draining: Set[str]
    ) -> Announced:
        if self.deaf:
            raise Unavailable("not yet")
        self.told.append({name: started.incarnation for name, (_, started) in workers.items()})
        self.drained.append(frozenset(draining))
        return Announced(len(workers), tuple(draining - self.needed))

    async def status(self, coordinator: StartedProcess) -> CellStatus:
        return self.cell


Cell = tuple[Controller, HealthFleet, Listener]


@pytest.fixture
async def cell(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cell]:
    monkeypatch.setattr(controller_module, "TICK_S", 0.02)
    monkeypatch.setattr(controller_module, "ANNOUNCE_EVERY_S", 0.3)
    fleet, listener = HealthFleet(), Listener()
    topology = desired(ClusterConfig(target="t", drafter="d", drafters=2), {})
    controller = Controller(topology, fleet, listener)
    yield controller, fleet, listener
    await controller.close(0.0)
    assert not fleet.servers, "close leaves nothing behind"


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - what is watched is another loop's state
            await asyncio.sleep(0.01)


def _phases(controller: Controller) -> dict[str, str]:
    return {row["name"]: row["phase"] for row in controller.report()}


async def _run(controller: Controller) -> asyncio.Task[None]:
    task = asyncio.create_task(controller.run())
    await _until(lambda: set(_phases(controller).values()) == {"serving"})
    return task


async def test_everything_desired_comes_up_and_the_coordinator_is_told_the_full_set(cell: Cell) -> None:
    controller, _, listener = cell
    task = await _run(controller)
    await _until(lambda: bool(listener.told) and set(listener.told[-1]) == {"verify/0", "draft/0", "draft/1"})
    task.cancel()


async def test_a_lost_drafter_is_replaced_with_a_new_incarnation_and_announced(cell: Cell) -> None:
    controller, fleet, listener = cell
    task = await _run(controller)
    await _until(lambda: bool(listener.told) and "draft/1" in listener.told[-1])
    before = listener.told[-1]["draft/1"]
    await fleet.crash("draft/1")
    await _until(lambda: listener.told[-1].get("draft/1", before) != before)
    assert fleet.started.count("draft/1") == 2
    assert fleet.started.count("draft/0") == 1, "nobody else is touched"
    assert "draft/1" in fleet.ended, "the dead one is put away before its successor starts"
    task.cancel()


async def test_a_restarted_coordinator_is_told_again(cell: Cell) -> None:
    controller, fleet, listener = cell
    task = await _run(controller)
    await _until(lambda: bool(listener.told))
    heard = len(listener.told)
    await fleet.crash("coordinator/0")
    await _until(lambda: fleet.started.count("coordinator/0") == 2 and len(listener.told) > heard)
    task.cancel()


async def test_an_announcement_that_fails_is_made_again_and_a_good_one_repeated(cell: Cell) -> None:
    controller, _, listener = cell
    listener.deaf = True
    task = await _run(controller)
    await asyncio.sleep(0.1)
    assert not listener.told
    listener.deaf = False
    await _until(lambda: len(listener.told) >= 2)
    assert listener.told[-1] == listener.told[-2]
    task.cancel()


async def test_a_replica_that_cannot_start_says_why_and_does_not_hold_up_the_others(cell: Cell) -> None:
    controller, fleet, _ = cell
    fleet.broken["draft/0"] = StartFailed("model.safetensors lacks fc.weight", fatal=True)
    task = asyncio.create_task(controller.run())
    await _until(lambda: sorted(_phases(controller).values()) == ["down", "serving", "serving", "serving"])
    (row,) = [row for row in controller.report() if row["name"] == "draft/0"]
    assert (row["reason"], row["fatal"]) == ("model.safetensors lacks fc.weight", True)
    await asyncio.sleep(0.2)
    assert fleet.started.count("draft/0") == 1, "a fatal start is not hammered"
    task.cancel()


async def test_a_new_controller_adopts_what_still_runs(cell: Cell) -> None:
    controller, fleet, listener = cell
    fleet.left = {"verify/0": await fleet.serve("verify/0")}
    task = await _run(controller)
    await _until(lambda: bool(listener.told) and "verify/0" in listener.told[-1])
    assert "verify/0" not in fleet.started
    assert listener.told[-1]["verify/0"] == fleet.left["verify/0"].incarnation
    task.cancel()


async def test_a_pool_that_grows_is_started_and_one_that_shrinks_is_drained_and_let_go(cell: Cell) -> None:
    controller, fleet, listener = cell
    task = await _run(controller)
    controller.resize(2, 1)
    await _until(lambda: bool(listener.told) and set(listener.told[-1]) == {"verify/0", "verify/1", "draft/0"})
    await _until(lambda: "draft/1" not in fleet.servers)
    assert fleet.ended == ["draft/1"]
    await asyncio.sleep(0.1)
    assert fleet.started.count("draft/1") == 1
    controller.resize(2, 2)
    await _until(lambda: fleet.started.count("draft/1") == 2 and "draft/1" in listener.told[-1])
    task.cancel()


async def test_a_worker_that_leaves_is_announced_as_draining_until_nobody_needs_it(cell: Cell) -> None:
    controller, fleet, listener = cell
    listener.needed = {"draft/1"}
    task = await _run(controller)
    await _until(lambda: bool(listener.told) and "draft/1" in listener.told[-1])
    before = len(listener.told)
    controller.resize(1, 1)
    await _until(lambda: len(listener.told) > before + 2)
    assert listener.drained[before:] == [{"draft/1"}] * len(listener.drained[before:]), "from the first word on"
    assert "draft/1" in fleet.servers, "it has sequences, so it stays"
    assert "draft/1" in listener.told[-1], "and the coordinator keeps its connection"
    listener.needed.clear()
    await _until(lambda: "draft/1" not in fleet.servers)
    await _until(lambda: "draft/1" not in listener.told[-1])
    task.cancel()


async def test_a_worker_that_is_needed_too_long_is_taken_from_the_set_before_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller_module, "TICK_S", 0.02)
    fleet, listener = HealthFleet(), Listener()
    listener.needed = {"verify/1"}
    topology = desired(ClusterConfig(target="t", drafter="d", verifiers=2, drafters=0), {})
    controller = Controller(topology, fleet, listener, drain_s=0.2)
    seen_at_end: list[bool] = []
    end = fleet.end

    async def noting(name: str, grace_s: float) -> None:
        if name == "verify/1":
            seen_at_end.append("verify/1" in listener.told[-1])
        await end(name, grace_s)

    task = await _run(controller)
    monkeypatch.setattr(fleet, "end", noting)
    controller.resize(1, 0)
    await _until(lambda: "verify/1" not in fleet.servers)
    assert seen_at_end == [False], "its sequences had moved when it ended"
    task.cancel()
    await controller.close(0.0)


async def test_pools_follow_the_load_within_their_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "TICK_S", 0.02)
    fleet, listener = HealthFleet(), Listener()
    config = AutoscaleConfig(
        enabled=True, max_drafters=3, look_s=0.04, window_s=0.2, up_after_s=0.1, down_after_s=0.2, zero_after_s=0.4,
        cool_down_s=0.1,
    )  # fmt: skip
    topology = desired(ClusterConfig(target="t", drafter="d", drafters=0), {})
    controller = Controller(topology, fleet, listener, autoscale=config)
    task = await _run(controller)
    with pytest.raises(ConfigError, match="9 drafters, while autoscaling keeps 0 to 3"):
        controller.resize(1, 9)
    listener.cell = CellStatus(lanes=(LaneStatus(verifier="verify/0", running=4),))
    await _until(lambda: "draft/0" in fleet.servers)
    listener.cell = CellStatus()
    await _until(lambda: "draft/0" not in fleet.servers)
    assert controller.sizes() == (1, 0)
    task.cancel()
    await controller.close(0.0)


async def test_a_pool_that_grew_by_itself_gives_back_what_no_node_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "TICK_S", 0.02)
    fleet, listener = HealthFleet(), Listener()
    fleet.unplaced = {"draft/1"}
    config = AutoscaleConfig(enabled=True, max_drafters=3, look_s=0.02, cool_down_s=3600.0)
    topology = desired(ClusterConfig(target="t", drafter="d", drafters=2), {})
    controller = Controller(topology, fleet, listener, autoscale=config)
    task = asyncio.create_task(controller.run())
    await _until(lambda: "draft/1" in fleet.started)
    await _until(lambda: controller.sizes() == (1, 1))
    assert "draft/0" in fleet.servers
    task.cancel()
    await controller.close(0.0)


async def test_a_pool_that_somebody_sized_waits_for_its_node_and_says_so(cell: Cell) -> None:
    controller, fleet, _ = cell
    fleet.unplaced = {"draft/1"}
    task = asyncio.create_task(controller.run())
    await _until(lambda: any(row["unplaced"] for row in controller.report()))
    (row,) = [row for row in controller.report() if row["unplaced"]]
    assert (row["name"], row["reason"]) == ("draft/1", "no node has a GPU")
    assert controller.sizes() == (1, 2)
    task.cancel()


def test_sizes_that_are_refused_leave_autoscaling_as_it_was() -> None:
    topology = desired(ClusterConfig(target="t", drafter="none", drafters=0), {ProcessRole.DRAFT: {"drafter": "none"}})
    config = AutoscaleConfig(enabled=True, max_verifiers=2)
    controller = Controller(topology, HealthFleet(), Listener(), autoscale=config)
    with pytest.raises(ConfigError, match="without a drafter"):
        controller.resize(3, 1, autoscale=False)
    with pytest.raises(ConfigError, match="keeps 1 to 2"):
        controller.resize(3, 0)
    controller.resize(3, 0, autoscale=False)
    assert controller.sizes() == (3, 0)
    with pytest.raises(ConfigError, match="keeps 1 to 2"):
        controller.resize(4, 0, autoscale=True)
    controller.resize(4, 0)
    assert controller.sizes() == (4, 0), "the refused word did not switch it on"


async def test_a_cell_without_a_drafter_is_never_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "TICK_S", 0.02)
    fleet, listener = HealthFleet(), Listener()
    listener.cell = CellStatus(lanes=(LaneStatus(verifier="verify/0", running=4),))
    topology = desired(ClusterConfig(target="t", drafter="none", drafters=0), {ProcessRole.DRAFT: {"drafter": "none"}})
    config = AutoscaleConfig(enabled=True, look_s=0.03, window_s=0.1, up_after_s=0.0, cool_down_s=0.0)
    controller = Controller(topology, fleet, listener, autoscale=config)
    task = await _run(controller)
    await asyncio.sleep(0.3)
    assert controller.sizes() == (1, 0)
    task.cancel()
    await controller.close(0.0)


async def test_a_new_controller_keeps_the_sizes_of_the_one_before(cell: Cell) -> None:
    controller, fleet, _ = cell
    fleet.left = {name: await fleet.serve(name) for name in ("coordinator/0", "verify/0", "verify/1")}
    task = await _run(controller)
    assert controller.sizes() == (2, 0)
    assert not fleet.started
    task.cancel()


async def test_front_ends_are_told_their_coordinator_and_come_back_where_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller_module, "TICK_S", 0.02)
    fleet, listener = HealthFleet(), Listener()
    topology = desired(
        ClusterConfig(target="t", drafter="d", drafters=0, frontends=2), {ProcessRole.FRONTEND: {"bind": "127.0.0.1:0"}}
    )
    given: list[Replica] = []
    launch = fleet.launch

    async def noting(replica: Replica) -> StartedProcess:
        given.append(replica)
        return await launch(replica)

    monkeypatch.setattr(fleet, "launch", noting)
    controller = Controller(topology, fleet, listener)
    task = await _run(controller)
    endpoints = {row["name"]: row["endpoint"] for row in controller.report()}
    assert fleet.started.index("coordinator/0") < fleet.started.index("frontend/0")
    fronts = [replica for replica in given if replica.role is ProcessRole.FRONTEND]
    assert [replica.settings["coordinator"] for replica in fronts] == [endpoints["coordinator/0"]] * 2
    await _until(lambda: bool(listener.told))
    assert set(listener.told[-1]) == {"verify/0"}, "a front end attaches by itself"

    await fleet.crash("frontend/1")
    await _until(lambda: fleet.started.count("frontend/1") == 2)
    assert given[-1].settings["bind"] == endpoints["frontend/1"]

    await fleet.crash("coordinator/0")  # this fleet starts it again at another port
    await _until(lambda: fleet.started.count("frontend/0") == 2 and fleet.started.count("frontend/1") == 3)
    await _until(lambda: set(_phases(controller).values()) == {"serving"})
    moved = {row["name"]: row["endpoint"] for row in controller.report()}["coordinator/0"]
    assert {replica.settings["coordinator"] for replica in given[-2:]} == {moved}
    task.cancel()
    before = len(fleet.ended)
    await controller.close(0.0)
    assert fleet.ended[before:] == ["frontend/0", "frontend/1", "coordinator/0", "verify/0"]
