"""What a fleet says of a launch. Ray is not started."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from deploy import ray_fleet
from deploy.config import ClusterConfig
from deploy.topology import Topology, desired
from tests.waiting import until


@pytest.fixture
def topology() -> Topology:
    return desired(ClusterConfig(target="t", drafter="d"), {})


class Actor:
    """An actor that Ray places, and whose room then loads, when told to."""

    def __init__(self) -> None:
        self.placed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.loaded: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.asked_to_start = False
        self.here = SimpleNamespace(remote=lambda: self.placed)
        self.start = SimpleNamespace(remote=self._start)

    def _start(self, *_: object, **__: object) -> asyncio.Future[Any]:
        self.asked_to_start = True
        return self.loaded


async def test_a_process_that_has_a_place_waits_for_none(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = Actor()
    created = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda _: actor))
    monkeypatch.setattr(ray_fleet.ray, "remote", lambda _: created)
    monkeypatch.setattr(ray_fleet.ray, "available_resources", lambda: {})
    monkeypatch.setattr(ray_fleet, "nodes", lambda: [ray_fleet.Node("n", {"CPU": 8.0})])
    monkeypatch.setattr(ray_fleet, "LOOK_S", 0.01)
    fleet = ray_fleet.RayFleet(topology, {}, ClusterConfig(target="t", drafter="d"))
    told: list[tuple[str, bool]] = []
    waits = lambda *what: told.append(what)  # noqa: E731
    launch = asyncio.create_task(fleet.launch(topology.coordinator, waits))
    await until(lambda: ("waiting for Ray to start a worker process", False) in told)
    actor.placed.set_result("n")
    await until(lambda: actor.asked_to_start)
    assert told[-1] == ("", False)
    actor.loaded.set_result({"endpoint": "127.0.0.1:7000", "incarnation": 1, "pid": 2})
    assert (await launch).pid == 2


@pytest.mark.parametrize("address", [None, "head:6379"])
def test_only_a_cluster_of_the_cell_s_own_is_known_to_hold_no_more(
    topology: Topology, monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    monkeypatch.setattr(ray_fleet, "nodes", lambda: [])
    config = ClusterConfig(target="t", drafter="d", address=address)
    refused = ray_fleet.RayFleet(topology, {}, config).misfit(topology.replicas.values())
    assert refused == ("" if address else "coordinator/0 cannot be placed: no node is there")
