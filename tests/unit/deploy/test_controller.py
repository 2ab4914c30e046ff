"""The controller over a fleet whose processes are real health servers in this event loop."""

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Set
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2_grpc

from deploy import controller as controller_module
from deploy import probe, reconcile
from deploy.autoscale import AutoscaleConfig
from deploy.config import ClusterConfig
from deploy.controller import Controller
from deploy.fleet import Pending, StartedProcess, StartFailed
from deploy.topology import ProcessRole, Replica, desired
from dspark.client import CellStatus, LaneStatus
from dspark.errors import ConfigError, Unavailable
from tests.waiting import until


class HealthFleet:
    """Every process is a gRPC health server; `broken` names refuse to start."""

    def __init__(self) -> None:
        self.servers: dict[str, grpc.aio.Server] = {}
        self.started: list[str] = []
        self.ended: list[str] = []
        self.broken: dict[str, StartFailed] = {}
        self.left: dict[str, StartedProcess] = {}
        self.unplaced: set[str] = set()
        self.room = 9  # processes
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

    def misfit(self, replicas: Collection[Replica]) -> str:
        return "no node has a GPU" if len(replicas) > self.room else ""

    def pending(self, name: str) -> Pending:
        return Pending("no node has a GPU", True) if name in self.unplaced else Pending()


class Listener:
    """Remembers every announcement; may be deaf. Workers in `needed` have sequences; `cell` is what
    status says."""

    def __init__(self) -> None:
        self.told: list[dict[str, int]] = []
        self.drained: list[frozenset[str]] = []
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
        self, config: ClusterConfig, settings: dict[ProcessRole, dict[str, str]], **options: Any
    ) -> None:
        self.fleet, self.listener = HealthFleet(), Listener()
        self.controller = Controller(
            desired(config, settings), self.fleet, self.listener, **options
        )
        self._keeping: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._keeping = asyncio.create_task(self.controller.run())

    async def run(self) -> None:
        """Until everybody serves."""
        self.begin()
        await until(lambda: set(self.phases().values()) == {"serving"})

    async def told(self, *names: str) -> None:
        """Until the coordinator has last been told of these."""
        await until(
            lambda: bool(self.listener.told) and self.listener.told[-1].keys() >= set(names)
        )

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


Make = Callable[..., Cell]
WITHOUT_DRAFTER = {ProcessRole.DRAFT: {"drafter": "none"}}


@pytest.fixture
async def make(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """Cells by keys of `ClusterConfig`; settings of roles and options of a controller beside
    them."""
    monkeypatch.setattr(controller_module, "TICK_S", 0.02)
    made: list[Cell] = []

    def make(
        settings: dict[ProcessRole, dict[str, str]] | None = None, options: Any = None, **keys: Any
    ) -> Cell:
        config = ClusterConfig(**{"target": "t", "drafter": "d", "drafters": 0, **keys})
        made.append(Cell(config, settings or {}, **(options or {})))
        return made[-1]

    yield make
    for each in made:
        await each.close()


@pytest.fixture
def cell(make: Make) -> Cell:
    return make(drafters=2)


async def test_a_lost_drafter_is_replaced_with_a_new_incarnation_and_announced(cell: Cell) -> None:
    await cell.run()
    await cell.told("draft/1")
    before, former = cell.listener.told[-1]["draft/1"], cell.controller._running["draft/1"]
    await cell.fleet.crash("draft/1")
    await until(lambda: cell.listener.told[-1].get("draft/1", before) != before)
    assert cell.fleet.started.count("draft/1") == 2
    assert cell.fleet.started.count("draft/0") == 1, "nobody else is touched"
    assert "draft/1" in cell.fleet.ended, "the dead one is put away before its successor starts"
    with pytest.raises(grpc.aio.UsageError, match="closed"):  # nothing of it is left open
        await former.look()


async def test_an_announcement_that_fails_is_made_again_and_a_good_one_repeated(cell: Cell) -> None:
    cell.listener.deaf = True
    await cell.run()
    await asyncio.sleep(0.1)
    assert not cell.listener.told
    cell.listener.deaf = False
    await until(lambda: len(cell.listener.told) >= 2)
    assert cell.listener.told[-1] == cell.listener.told[-2]


async def test_a_replica_that_cannot_start_says_why_and_does_not_hold_up_the_others(
    cell: Cell,
) -> None:
    cell.fleet.broken["draft/0"] = StartFailed("model.safetensors lacks fc.weight", fatal=True)
    cell.begin()
    await until(lambda: sorted(cell.phases().values()) == ["down", "serving", "serving", "serving"])
    row = cell.row("draft/0")
    assert (row["reason"], row["fatal"]) == ("model.safetensors lacks fc.weight", True)
    await asyncio.sleep(0.2)
    assert cell.fleet.started.count("draft/0") == 1, "a fatal start is not hammered"


async def test_a_replica_that_failed_and_left_is_new_when_it_is_wanted_again(cell: Cell) -> None:
    cell.fleet.broken["draft/1"] = StartFailed("no such file", fatal=True)
    cell.begin()
    await until(lambda: cell.row("draft/1")["fatal"])
    cell.controller.resize(1, 1)
    await until(lambda: "draft/1" not in cell.phases())
    cell.fleet.broken.clear()
    cell.controller.resize(1, 2)
    await until(lambda: cell.phases()["draft/1"] == "serving")
    assert cell.row("draft/1")["failures"] == 0


async def test_a_new_controller_adopts_what_still_runs(cell: Cell) -> None:
    cell.fleet.left = {"verify/0": await cell.fleet.serve("verify/0")}
    await cell.run()
    await cell.told("verify/0")
    assert "verify/0" not in cell.fleet.started
    assert cell.listener.told[-1]["verify/0"] == cell.fleet.left["verify/0"].incarnation


async def test_front_ends_that_are_adopted_first_follow_the_coordinator_too(make: Make) -> None:
    cell = make(frontends=1)
    for name in ("frontend/0", "coordinator/0", "verify/0"):
        cell.fleet.left[name] = await cell.fleet.serve(name)
    await cell.run()
    coordinator = cell.fleet.left["coordinator/0"].endpoint
    assert cell.controller._fronts["frontend/0"][0] == coordinator


async def test_wanted_sizes_are_told_for_a_successor_and_kept_whoever_is_left(cell: Cell) -> None:
    told: list[tuple[int, int]] = []
    cell.controller.on_resized = lambda *sizes: told.append(sizes)
    for name in ("coordinator/0", "verify/0"):
        cell.fleet.left[name] = await cell.fleet.serve(name)
    wanted = cell.controller.sizes()
    await cell.run()
    assert cell.controller.sizes() == wanted, "a worker that is gone is started again"
    cell.controller.resize(2, 1)
    assert told == [(2, 1)]


async def test_a_process_that_stays_silent_is_replaced(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_module, "HUNG_AFTER_S", 0.1)
    monkeypatch.setattr(probe, "LOOK_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cell.fleet.left = {"verify/0": StartedProcess(f"127.0.0.1:{silent.getsockname()[1]}", 1, 1)}
        cell.begin()
        await until(lambda: "verify/0" in cell.fleet.started)
    assert "verify/0" in cell.fleet.ended


async def test_a_front_end_whose_port_is_taken_gets_another(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "FIRST_DELAY_S", 0.01)
    cell = make({ProcessRole.FRONTEND: {"bind": "127.0.0.1:0"}}, frontends=1)
    await cell.run()
    launch, binds = cell.fleet.launch, list[str]()

    async def taken_once(replica: Replica) -> StartedProcess:
        binds.append(replica.settings["bind"])
        if len(binds) == 1:
            raise StartFailed("its port is taken", fatal=False)
        return await launch(replica)

    monkeypatch.setattr(cell.fleet, "launch", taken_once)
    before = cell.row("frontend/0")["endpoint"]
    await cell.fleet.crash("frontend/0")
    await until(lambda: binds == [before, "127.0.0.1:0"])


async def test_a_controller_that_is_closed_while_it_looks_ends_in_order(cell: Cell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cell.fleet.left = {"verify/0": StartedProcess(f"127.0.0.1:{silent.getsockname()[1]}", 1, 1)}
        cell.begin()
        await until(lambda: "verify/0" in cell.controller._running)
        await cell.close()


async def test_a_pool_that_grows_is_started_and_one_that_shrinks_is_drained_and_let_go(
    cell: Cell,
) -> None:
    await cell.run()
    cell.controller.resize(2, 1)
    await until(
        lambda: (
            bool(cell.listener.told)
            and set(cell.listener.told[-1]) == {"verify/0", "verify/1", "draft/0"}
        )
    )
    await until(lambda: "draft/1" not in cell.fleet.servers)
    assert cell.fleet.ended == ["draft/1"]
    await asyncio.sleep(0.1)
    assert cell.fleet.started.count("draft/1") == 1
    cell.controller.resize(2, 2)
    await until(
        lambda: cell.fleet.started.count("draft/1") == 2 and "draft/1" in cell.listener.told[-1]
    )


async def test_a_worker_that_leaves_is_announced_as_draining_until_nobody_needs_it(
    cell: Cell,
) -> None:
    cell.listener.needed = {"draft/1"}
    await cell.run()
    await cell.told("draft/1")
    before = len(cell.listener.told)
    cell.controller.resize(1, 1)
    await until(lambda: len(cell.listener.told) > before + 2)
    assert all(each == {"draft/1"} for each in cell.listener.drained[before:]), (
        "from the first word on"
    )
    assert "draft/1" in cell.fleet.servers, "it has sequences, so it stays"
    assert "draft/1" in cell.listener.told[-1], "and the coordinator keeps its connection"
    await cell.fleet.crash("draft/1")
    before = len(cell.listener.told)
    await until(lambda: len(cell.listener.told) > before + 3)
    assert "draft/1" not in cell.fleet.ended, "nobody watches who leaves"
    cell.listener.needed.clear()
    await until(lambda: "draft/1" not in cell.fleet.servers)
    await until(lambda: "draft/1" not in cell.listener.told[-1])


@pytest.mark.parametrize("adopted", [False, True])
async def test_a_worker_that_is_wanted_again_while_it_drains_stays(
    adopted: bool, cell: Cell
) -> None:
    cell.listener.needed = {"draft/1"}
    if adopted:  # by a controller that Ray restarted meanwhile
        cell.fleet.left = {"draft/1": await cell.fleet.serve("draft/1")}
        cell.controller.resize(1, 1)
    cell.begin()
    await cell.told("draft/1")
    cell.controller.resize(1, 1)
    assert cell.phases()["draft/1"] == "stopping", "from the first word on"
    await until(lambda: cell.listener.drained[-1] == {"draft/1"})
    assert cell.phases()["draft/1"] == "stopping"
    cell.controller.resize(1, 2)
    await until(lambda: cell.phases().get("draft/1") == "serving")
    cell.listener.needed.clear()
    heard = len(cell.listener.told)
    await until(lambda: len(cell.listener.told) > heard)
    assert not cell.fleet.ended
    assert "draft/1" in cell.listener.told[-1]
    assert not cell.listener.drained[-1]
    await cell.fleet.crash("draft/1")
    await until(lambda: "draft/1" in cell.fleet.ended and "draft/1" in cell.fleet.servers)
    await until(lambda: set(cell.phases().values()) == {"serving"})


async def test_more_than_the_machine_holds_is_refused_before_anything_starts(cell: Cell) -> None:
    sizes = cell.controller.sizes()
    with pytest.raises(ConfigError, match="no node has a GPU"):
        cell.controller.resize(2, 500)
    assert cell.controller.sizes() == sizes


async def test_a_worker_that_is_not_wanted_while_it_waits_for_a_place_is_ended_at_once(
    cell: Cell,
) -> None:
    cell.fleet.unplaced = {"draft/1"}
    cell.begin()
    await until(lambda: "draft/1" in cell.fleet.started)
    cell.controller.resize(1, 1)
    await until(lambda: cell.fleet.ended == ["draft/1"])
    await until(lambda: "draft/1" not in cell.phases())
    cell.fleet.unplaced.clear()
    cell.controller.resize(1, 2)
    await until(lambda: set(cell.phases().values()) == {"serving"})
    assert cell.fleet.started.count("draft/1") == 2


async def test_certificates_that_cannot_be_read_leave_nobody_unwatched(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, readable = controller_module.Probe, False

    def opened(*words: Any) -> Any:
        if not readable:
            raise ConfigError("tls_cert: cannot be read")
        return real(*words)

    monkeypatch.setattr(controller_module, "Probe", opened)
    adopting, starting = make(), make()
    adopting.fleet.left = {"verify/0": await adopting.fleet.serve("verify/0")}
    adopting.begin()
    starting.begin()
    first = partial(starting.row, "verify/0")
    await until(lambda: first()["phase"] == "down" and first()["reason"])  # not yet begun anew
    assert "tls_cert" in first()["reason"]
    assert "verify/0" in starting.fleet.ended
    readable = True
    for cell in (adopting, starting):
        await until(lambda cell=cell: set(cell.phases().values()) == {"serving"})
        assert cell.controller._running.keys() == cell.phases().keys()
    assert "verify/0" not in adopting.fleet.started


async def test_a_worker_that_is_needed_too_long_is_taken_from_the_set_before_it_ends(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_module, "DRAIN_S", 1e9)
    cell = make(verifiers=2, options={"drain_s": 0.2})
    cell.listener.needed = {"verify/1"}
    seen_at_end: list[bool] = []
    end = cell.fleet.end

    async def noting(name: str, grace_s: float) -> None:
        if name == "verify/1":
            seen_at_end.append("verify/1" in cell.listener.told[-1])
        await end(name, grace_s)

    await cell.run()
    monkeypatch.setattr(cell.fleet, "end", noting)
    cell.controller.resize(1, 0)
    await until(lambda: "verify/1" not in cell.fleet.servers)
    assert seen_at_end == [False], "its sequences had moved when it ended"


async def test_pools_follow_the_load_within_their_bounds(make: Make) -> None:
    config = AutoscaleConfig(
        enabled=True, max_drafters=3, look_s=0.04, window_s=0.2, up_after_s=0.1, down_after_s=0.2,
        zero_after_s=0.4,
        cool_down_s=0.1,
    )  # fmt: skip
    cell = make(options={"autoscale": config})
    await cell.run()
    with pytest.raises(ConfigError, match="9 drafters, while autoscaling keeps 0 to 3"):
        cell.controller.resize(1, 9)
    cell.listener.cell = CellStatus(lanes=(LaneStatus(verifier="verify/0", running=4),))
    await until(lambda: "draft/0" in cell.fleet.servers)
    cell.listener.cell = CellStatus()
    await until(lambda: "draft/0" not in cell.fleet.servers)
    assert cell.controller.sizes() == (1, 0)


async def test_what_an_operator_said_is_not_undone_at_the_next_look(make: Make) -> None:
    config = AutoscaleConfig(
        enabled=True, max_verifiers=3, look_s=0.01, window_s=0.05, down_after_s=0.0
    )
    cell = make(options={"autoscale": config})
    await cell.run()
    cell.controller.resize(3, 0)
    await until(lambda: {"verify/1", "verify/2"} <= cell.fleet.servers.keys())
    heard = len(cell.listener.told)  # before each look
    await until(lambda: len(cell.listener.told) > heard + 10)
    assert cell.controller.sizes() == (3, 0)


async def test_the_patience_of_autoscaling_begins_anew_while_replicas_start(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[object] = []
    monkeypatch.setattr(controller_module.Autoscaler, "forget", lambda self: forgotten.append(self))
    cell = make(drafters=1, options={"autoscale": AutoscaleConfig(enabled=True, look_s=0.02)})
    cell.fleet.unplaced = {"draft/0"}
    cell.begin()
    await until(lambda: bool(forgotten))


async def test_a_pool_that_grew_by_itself_gives_back_what_no_node_can_hold(make: Make) -> None:
    config = AutoscaleConfig(enabled=True, max_drafters=3, look_s=0.02, cool_down_s=3600.0)
    cell = make(drafters=2, options={"autoscale": config})
    cell.fleet.unplaced = {"draft/1"}
    cell.begin()
    await until(lambda: "draft/1" in cell.fleet.started)
    await until(lambda: cell.controller.sizes() == (1, 1))
    assert "draft/0" in cell.fleet.servers


async def test_a_pool_that_somebody_sized_waits_for_its_node_and_says_so(cell: Cell) -> None:
    cell.fleet.unplaced = {"draft/1"}
    cell.begin()
    await until(lambda: any(row["unplaced"] for row in cell.controller.report()))
    (row,) = [row for row in cell.controller.report() if row["unplaced"]]
    assert (row["name"], row["reason"]) == ("draft/1", "no node has a GPU")
    assert cell.controller.sizes() == (1, 2)


async def test_sizes_that_are_refused_leave_autoscaling_as_it_was(make: Make) -> None:
    cell = make(
        WITHOUT_DRAFTER,
        {"autoscale": AutoscaleConfig(enabled=True, max_verifiers=2)},
        drafter="none",
    )
    with pytest.raises(ConfigError, match="without a drafter"):
        cell.controller.resize(3, 1, autoscale=False)
    with pytest.raises(ConfigError, match="keeps 1 to 2"):
        cell.controller.resize(3, 0)
    cell.controller.resize(3, 0, autoscale=False)
    assert cell.controller.sizes() == (3, 0)
    with pytest.raises(ConfigError, match="keeps 1 to 2"):
        cell.controller.resize(4, 0, autoscale=True)
    cell.controller.resize(4, 0)
    assert cell.controller.sizes() == (4, 0), "the refused word did not switch it on"


async def test_front_ends_are_told_their_coordinator_and_come_back_where_they_were(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"bind": "127.0.0.1:0", "http": "[::1]:0"}
    cell = make({ProcessRole.FRONTEND: settings}, frontends=2)
    given: list[Replica] = []
    launch = cell.fleet.launch

    async def noting(replica: Replica) -> StartedProcess:
        given.append(replica)
        return replace(await launch(replica), http=f"http://[::1]:800{replica.name[-1]}")

    monkeypatch.setattr(cell.fleet, "launch", noting)
    await cell.run()
    endpoints = {row["name"]: row["endpoint"] for row in cell.controller.report()}
    assert cell.fleet.started.index("coordinator/0") < cell.fleet.started.index("frontend/0")
    fronts = [replica for replica in given if replica.role is ProcessRole.FRONTEND]
    assert [replica.settings["coordinator"] for replica in fronts] == [
        endpoints["coordinator/0"]
    ] * 2
    heard = len(cell.listener.told)
    await until(lambda: len(cell.listener.told) > heard + 1)
    assert set(cell.listener.told[-1]) == {"verify/0"}, "a front end attaches by itself"

    await cell.fleet.crash("frontend/1")
    await until(lambda: cell.fleet.started.count("frontend/1") == 2)
    assert given[-1].settings["bind"] == endpoints["frontend/1"]
    assert given[-1].settings["http"] == "[::1]:8001"

    await cell.fleet.crash("coordinator/0")  # this fleet starts it again at another port
    await until(
        lambda: (
            cell.fleet.started.count("frontend/0") == 2
            and cell.fleet.started.count("frontend/1") == 3
        )
    )
    await until(lambda: set(cell.phases().values()) == {"serving"})
    moved = {row["name"]: row["endpoint"] for row in cell.controller.report()}["coordinator/0"]
    assert {replica.settings["coordinator"] for replica in given[-2:]} == {moved}
    before = len(cell.fleet.ended)
    await cell.close()
    assert cell.fleet.ended[before:] == ["frontend/0", "frontend/1", "coordinator/0", "verify/0"]
