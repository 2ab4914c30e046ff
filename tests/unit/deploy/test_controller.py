"""The controller over a fleet whose processes are real health servers in this event loop."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from unittest.mock import Mock

import grpc
import pytest

from deploy import controller as controller_module
from deploy import probe, reconcile
from deploy.autoscale import AutoscaleConfig
from deploy.config import ClusterConfig
from deploy.fleet import StartedProcess, StartFailed
from deploy.topology import ProcessRole
from dspark.client import CellStatus, LaneStatus
from dspark.errors import ConfigError
from tests.unit.deploy.health_cell import Cell
from tests.waiting import until

Make = Callable[..., Cell]


@pytest.fixture
async def make(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """Cells by keys of `ClusterConfig`, settings of roles, and how pools follow the load."""
    monkeypatch.setattr(controller_module, "TICK_S", 0.02)
    made: list[Cell] = []

    def make(
        settings: dict[ProcessRole, dict[str, str]] | None = None,
        autoscale: AutoscaleConfig | None = None,
        **keys: Any,
    ) -> Cell:
        config = ClusterConfig(**{"target": "t", "drafter": "d", "drafters": 0, **keys})
        made.append(Cell(config, settings or {}, autoscale or AutoscaleConfig()))
        return made[-1]

    yield make
    for each in made:
        await each.close()


@pytest.fixture
def cell(make: Make) -> Cell:
    return make(drafters=2)


@pytest.fixture
def silent() -> Iterator[StartedProcess]:
    """A process that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield StartedProcess(f"127.0.0.1:{listener.getsockname()[1]}", 1, 1)


async def test_a_lost_drafter_is_replaced_with_a_new_incarnation_and_announced(cell: Cell) -> None:
    await cell.run()
    await cell.told("draft/1")
    before, former = cell.workers["draft/1"], cell.controller._running["draft/1"]
    await cell.fleet.crash("draft/1")
    await until(lambda: cell.workers.get("draft/1", before) != before)
    assert len(cell.fleet.starts("draft/1")) == 2
    assert len(cell.fleet.starts("draft/0")) == 1, "nobody else is touched"
    assert "draft/1" in cell.fleet.ended, "the dead one is put away before its successor starts"
    with pytest.raises(grpc.aio.UsageError, match="closed"):  # nothing of it is left open
        await former.look()


async def test_an_announcement_that_fails_is_made_again_and_a_good_one_repeated(cell: Cell) -> None:
    cell.listener.deaf = True
    await cell.run()
    await asyncio.sleep(0.1)
    cell.listener.deaf = False
    await cell.looks(2)
    assert cell.listener.told[-1] == cell.listener.told[-2] != {}


async def test_a_replica_that_cannot_start_says_why_and_does_not_hold_up_the_others(
    cell: Cell,
) -> None:
    cell.fleet.broken["draft/0"] = StartFailed("model.safetensors lacks fc.weight", fatal=True)
    cell.begin()
    await until(lambda: sorted(cell.phases().values()) == ["down", "serving", "serving", "serving"])
    row = cell.row("draft/0")
    assert (row["reason"], row["fatal"]) == ("model.safetensors lacks fc.weight", True)
    await asyncio.sleep(0.2)
    assert len(cell.fleet.starts("draft/0")) == 1, "a fatal start is not hammered"


async def test_a_replica_that_failed_and_left_is_new_when_it_is_wanted_again(cell: Cell) -> None:
    cell.fleet.broken["draft/1"] = StartFailed("no such file", fatal=True)
    cell.begin()
    await until(lambda: cell.row("draft/1")["fatal"])
    cell.controller.resize(1, 1)
    await until(lambda: "draft/1" not in cell.phases())
    cell.fleet.broken.clear()
    cell.controller.resize(1, 2)
    await cell.serves()
    assert cell.row("draft/1")["failures"] == 0


async def test_a_new_controller_adopts_what_still_runs(cell: Cell) -> None:
    cell.fleet.left = {"verify/0": await cell.fleet.serve("verify/0")}
    await cell.run()
    await cell.told("verify/0")
    assert not cell.fleet.starts("verify/0")
    assert cell.workers["verify/0"] == cell.fleet.left["verify/0"].incarnation


async def test_front_ends_that_are_adopted_first_follow_the_coordinator_too(make: Make) -> None:
    cell = make(frontends=1)
    for name in ("frontend/0", "coordinator/0", "verify/0"):
        cell.fleet.left[name] = await cell.fleet.serve(name)
    cell.begin()
    await cell.looks(2)
    assert not cell.fleet.ended, "it has no other one to follow"


async def test_wanted_sizes_are_told_for_a_successor_and_kept_whoever_is_left(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[tuple[int, int], bool]] = []
    monkeypatch.setattr(cell.controller, "keep", lambda *said: told.append(said))
    for name in ("coordinator/0", "verify/0"):
        cell.fleet.left[name] = await cell.fleet.serve(name)
    await cell.run()
    assert cell.controller.sizes() == (1, 2), "a worker that is gone is started again"
    assert cell.controller.resize(2, None)[:2] == (2, 2)
    cell.controller.resize(None, 1, autoscale=True)
    assert told == [((2, 2), False), ((2, 1), False), ((2, 1), True)]


async def test_a_process_that_stays_silent_is_replaced(
    cell: Cell, silent: StartedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_module, "HUNG_AFTER_S", 0.1)
    monkeypatch.setattr(probe, "LOOK_TIMEOUT_S", 0.05)
    cell.fleet.left = {"verify/0": silent}
    cell.begin()
    await until(lambda: cell.fleet.starts("verify/0"))
    assert "verify/0" in cell.fleet.ended


async def test_a_controller_that_is_closed_while_it_looks_ends_in_order(
    cell: Cell, silent: StartedProcess
) -> None:
    cell.fleet.left = {"verify/0": silent}
    cell.begin()
    await until(lambda: cell.phases()["verify/0"] == "serving")
    await cell.close()


async def test_a_front_end_whose_port_is_taken_gets_another(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "FIRST_DELAY_S", 0.01)
    cell = make({ProcessRole.FRONTEND: {"bind": "127.0.0.1:0"}}, frontends=1)
    await cell.run()
    before = cell.row("frontend/0")["endpoint"]
    cell.fleet.broken["frontend/0"] = StartFailed("its port is taken", fatal=False)
    await cell.fleet.crash("frontend/0")
    await until(lambda: len(cell.fleet.starts("frontend/0")) > 2)
    binds = [settings["bind"] for settings in cell.fleet.starts("frontend/0")]
    assert binds[1:3] == [before, "127.0.0.1:0"]


async def test_a_pool_that_grows_is_started_and_one_that_shrinks_is_drained_and_let_go(
    cell: Cell,
) -> None:
    await cell.run()
    cell.controller.resize(2, 1)
    await until(lambda: cell.workers.keys() == {"verify/0", "verify/1", "draft/0"})
    await until(lambda: "draft/1" not in cell.fleet.servers)
    assert cell.fleet.ended == ["draft/1"]
    await cell.looks(5)
    assert len(cell.fleet.starts("draft/1")) == 1
    cell.controller.resize(2, 2)
    await cell.told("draft/1")
    assert len(cell.fleet.starts("draft/1")) == 2


async def test_a_worker_that_leaves_is_announced_as_draining_until_nobody_needs_it(
    cell: Cell,
) -> None:
    cell.listener.needed = {"draft/1"}
    await cell.run()
    await cell.told("draft/1")
    before = len(cell.listener.told)
    cell.controller.resize(1, 1)
    await cell.looks(3)
    assert {*cell.listener.drained[before:]} == {frozenset({"draft/1"})}, "from the first word on"
    assert "draft/1" in cell.fleet.servers, "it has sequences, so it stays"
    assert "draft/1" in cell.workers, "and the coordinator keeps its connection"
    await cell.fleet.crash("draft/1")
    await cell.looks(3)
    assert "draft/1" not in cell.fleet.ended, "nobody watches who leaves"
    cell.listener.needed.clear()
    await until(lambda: "draft/1" not in cell.fleet.servers)
    await until(lambda: "draft/1" not in cell.workers)


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
    await until(lambda: cell.phases()["draft/1"] == "serving")
    cell.listener.needed.clear()
    await cell.looks()
    assert not cell.fleet.ended
    assert "draft/1" in cell.workers
    assert not cell.listener.drained[-1]
    await cell.fleet.crash("draft/1")
    await until(lambda: "draft/1" in cell.fleet.ended and "draft/1" in cell.fleet.servers)
    await cell.serves()


async def test_more_than_the_machine_holds_is_refused_before_anything_starts(cell: Cell) -> None:
    with pytest.raises(ConfigError, match="no node has a GPU"):
        cell.controller.resize(2, 500)
    assert cell.controller.sizes() == (1, 2)


async def test_a_worker_that_is_not_wanted_while_it_waits_for_a_place_is_ended_at_once(
    cell: Cell,
) -> None:
    cell.fleet.unplaced = {"draft/1"}
    cell.begin()
    await until(lambda: cell.row("draft/1")["unplaced"])
    cell.controller.resize(1, 1)
    told = cell.row("draft/1")
    assert (told["phase"], told["reason"], told["unplaced"]) == ("stopping", "", False)
    await until(lambda: cell.fleet.ended == ["draft/1"])
    await until(lambda: "draft/1" not in cell.phases())
    cell.fleet.unplaced.clear()
    cell.controller.resize(1, 2)
    await cell.serves()
    assert len(cell.fleet.starts("draft/1")) == 2


async def test_certificates_that_cannot_be_read_leave_nobody_unwatched(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable = Mock(side_effect=ConfigError("tls_cert: cannot be read"))
    adopting, starting = make(), make()
    adopting.fleet.left = {"verify/0": await adopting.fleet.serve("verify/0")}
    with monkeypatch.context() as patched:
        patched.setattr(controller_module, "Probe", unreadable)
        adopting.begin()
        starting.begin()
        await until(lambda: "tls_cert" in starting.row("verify/0")["reason"])
        assert "verify/0" in starting.fleet.ended
    for cell in (adopting, starting):
        await cell.serves()
        assert cell.controller._running.keys() == cell.phases().keys()
    assert not adopting.fleet.starts("verify/0")


async def test_a_worker_that_is_needed_too_long_is_taken_from_the_set_before_it_ends(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = make(verifiers=2, drain_s=0.2)
    cell.listener.needed = {"verify/1"}
    seen_at_end: list[bool] = []
    end = cell.fleet.end

    async def noting(name: str, grace_s: float) -> None:
        seen_at_end.append(name in cell.workers)
        await end(name, grace_s)

    await cell.run()
    monkeypatch.setattr(cell.fleet, "end", noting)
    cell.controller.resize(1, 0)
    await until(lambda: "verify/1" not in cell.fleet.servers)
    assert seen_at_end == [False], "its sequences had moved when it ended"


def following(**keys: Any) -> AutoscaleConfig:
    return AutoscaleConfig(enabled=True, look_s=0.02, **keys)


async def test_pools_follow_the_load_within_their_bounds(make: Make) -> None:
    soon = {"up_after_s": 0.1, "down_after_s": 0.2, "zero_after_s": 0.4, "cool_down_s": 0.1}
    cell = make(autoscale=following(max_drafters=3, window_s=0.2, **soon))
    await cell.run()
    with pytest.raises(ConfigError, match="9 drafters, while autoscaling keeps 0 to 3"):
        cell.controller.resize(1, 9)
    cell.listener.cell = CellStatus(lanes=(LaneStatus(verifier="verify/0", running=4),))
    await until(lambda: "draft/0" in cell.fleet.servers)
    cell.listener.cell = CellStatus()
    await until(lambda: "draft/0" not in cell.fleet.servers)
    assert cell.controller.sizes() == (1, 0)


async def test_what_an_operator_said_is_not_undone_at_the_next_look(make: Make) -> None:
    cell = make(autoscale=following(max_verifiers=3, window_s=0.05, down_after_s=0.0))
    await cell.run()
    cell.controller.resize(3, 0)
    await until(lambda: {"verify/1", "verify/2"} <= cell.fleet.servers.keys())
    await cell.looks(11)
    assert cell.controller.sizes() == (3, 0)


async def test_the_patience_of_autoscaling_begins_anew_while_replicas_start(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[object] = []
    monkeypatch.setattr(controller_module.Autoscaler, "forget", lambda self: forgotten.append(self))
    cell = make(drafters=1, autoscale=following())
    cell.fleet.unplaced = {"draft/0"}
    cell.begin()
    await until(lambda: bool(forgotten))


async def test_a_pool_that_grew_by_itself_gives_back_what_no_node_can_hold(make: Make) -> None:
    cell = make(drafters=2, autoscale=following(max_drafters=3, cool_down_s=3600.0))
    cell.fleet.unplaced = {"draft/1"}
    cell.begin()
    await until(lambda: cell.fleet.starts("draft/1") and cell.controller.sizes() == (1, 1))
    assert "draft/0" in cell.fleet.servers


async def test_a_pool_that_somebody_sized_waits_for_its_node_and_says_so(cell: Cell) -> None:
    cell.fleet.unplaced = {"draft/1"}
    cell.begin()
    await until(lambda: any(row["unplaced"] for row in cell.controller.report()))
    (row,) = [row for row in cell.controller.report() if row["unplaced"]]
    assert (row["name"], row["reason"]) == ("draft/1", "no node has a GPU")
    assert cell.controller.sizes() == (1, 2)


async def test_sizes_that_are_refused_leave_autoscaling_as_it_was(make: Make) -> None:
    nobody = {ProcessRole.DRAFT: {"drafter": "none"}}
    cell = make(nobody, following(max_verifiers=2), drafter="none")
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
    make: Make,
) -> None:
    settings = {"bind": "127.0.0.1:0", "http": "[::1]:0"}
    cell = make({ProcessRole.FRONTEND: settings}, frontends=2)
    fleet, first, second = cell.fleet, "frontend/0", "frontend/1"

    def coordinators() -> set[str]:
        """That the last starts of front ends were told."""
        return {fleet.starts(name)[-1]["coordinator"] for name in (first, second)}

    await cell.run()
    assert [replica.name for replica in fleet.asked[-2:]] == [first, second], "behind it"
    assert coordinators() == {cell.row("coordinator/0")["endpoint"]}
    await cell.looks(2)
    assert cell.workers.keys() == {"verify/0"}, "a front end attaches by itself"

    bind = cell.row(second)["endpoint"]
    await fleet.crash(second)
    await until(lambda: len(fleet.starts(second)) == 2)
    assert fleet.starts(second)[-1].items() >= {"bind": bind, "http": "[::1]:8001"}.items()

    await fleet.crash("coordinator/0")  # this fleet starts it again at another port
    await until(lambda: (len(fleet.starts(first)), len(fleet.starts(second))) == (2, 3))
    await cell.serves()
    assert coordinators() == {cell.row("coordinator/0")["endpoint"]}
    before = len(fleet.ended)
    await cell.close()
    assert fleet.ended[before:] == [first, second, "coordinator/0", "verify/0"]
