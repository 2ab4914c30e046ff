"""Names of cells come again in a Ray cluster that many use, ids do not. Ray is not started."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from ray.exceptions import RayTaskError

from deploy import cluster, down, ray_table
from deploy.autoscale import AutoscaleConfig
from deploy.config import ClusterConfig
from deploy.fleet import AnotherCell, NothingStarted
from deploy.topology import desired
from dspark.client.cell import Cell, cell_file, write_cell
from dspark.errors import ConfigError, Unavailable
from tests.noted_cell import CELL


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What is kept in Ray's own table."""
    kept: dict[str, bytes] = {}
    monkeypatch.setattr(
        ray_table,
        "internal_kv",
        SimpleNamespace(
            _internal_kv_get=lambda key, namespace: kept.get(key),
            _internal_kv_put=lambda key, said, namespace: kept.update({key: said.encode()}),
            _internal_kv_del=lambda key, namespace: kept.pop(key, None),
        ),
    )
    return kept


def cell(cell_id: str) -> Cell:
    return replace(CELL, cell_id=cell_id, name="ours")


def controller(cell_id: str, **keys: Any) -> cluster.DsparkController:
    keys = {"target": "t", "drafter": "d", "cell": "ours", "address": "head:6379", **keys}
    config = ClusterConfig(**keys)
    made = cluster.DsparkController(cell_id, desired(config, {}), {}, config, AutoscaleConfig())
    made._loop.cancel()
    return made


async def test_what_was_said_holds_for_the_very_cell_that_it_was_said_to(
    table: dict[str, bytes],
) -> None:
    controller("one").resize(3, 2, autoscale=True)
    again = controller("one")
    assert again.sizes() == (3, 2), "Ray restarted it"
    with pytest.raises(ConfigError, match="autoscaling keeps"):
        again.resize(3, 9)
    assert controller("another").sizes() == (1, 1)
    assert ray_table.kept("ours") == {"owner": "another", "sizes": [1, 1], "autoscale": False}
    assert len(table) == 1


def test_another_cell_of_the_name_is_neither_asked_nor_sized_nor_ended(
    table: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = SimpleNamespace(report=SimpleNamespace(remote=lambda: None))
    monkeypatch.setattr(cluster, "controller", lambda name: asked)
    monkeypatch.setattr(cluster, "_get", lambda *_: [])
    ray_table.keep("ours", owner="theirs")
    for call in (
        lambda: cluster.report(cell("mine")),
        lambda: cluster.resize(cell("mine"), 1, 1, None),
        lambda: cluster.close_cell(cell("mine"), 0.0),
    ):
        with pytest.raises(AnotherCell, match="'ours'"):
            call()


def test_the_end_of_a_cell_leaves_nothing_in_the_table(
    table: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "controller", lambda name: None)
    monkeypatch.setattr(cluster, "actors_of", lambda name: [])
    ray_table.keep("ours", owner="mine")
    with pytest.raises(Unavailable, match="gone"):
        cluster.report(cell("mine"))
    cluster.close_cell(cell("mine"), 0.0)
    assert not table


def start(monkeypatch: pytest.MonkeyPatch, created: Any) -> list[Any]:
    """Starts a controller where creating its actor is `created`; returns the handles it killed."""
    killed: list[Any] = []
    actor = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=created))
    monkeypatch.setattr(cluster.ray, "remote", lambda _: actor)
    monkeypatch.setattr(cluster.ray, "kill", lambda handle, no_restart: killed.append(handle))
    config = ClusterConfig(target="t", drafter="d")
    try:
        cluster.start_controller("mine", desired(config, {}), {}, config, AutoscaleConfig())
    except BaseException as error:
        return [*killed, error]
    return killed


def test_a_name_that_is_taken_leaves_nothing_to_undo(monkeypatch: pytest.MonkeyPatch) -> None:
    (error,) = start(monkeypatch, Mock(side_effect=ValueError("The name is already taken")))
    assert isinstance(error, NothingStarted)


def test_a_controller_whose_start_is_interrupted_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = SimpleNamespace(report=SimpleNamespace(remote=Mock(side_effect=KeyboardInterrupt)))
    killed, error = start(monkeypatch, lambda *_: handle)
    assert killed is handle
    assert isinstance(error, KeyboardInterrupt)


async def test_new_sizes_may_take_what_draining_and_starting_may(table: dict[str, bytes]) -> None:
    actor = controller("mine", drain_s=3600.0, start_timeout_s=70.0)
    assert actor.resize(None, None) == (1, 1, 3670.0)


def test_sizes_that_the_controller_refuses_are_told_as_it_tells_them(
    table: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = RayTaskError("resize", "its traceback", ConfigError("scale: draft=-1"))
    monkeypatch.setattr(cluster, "controller", lambda name: Mock())
    monkeypatch.setattr(cluster.ray, "get", Mock(side_effect=refused.as_instanceof_cause()))
    ray_table.keep("ours", owner="mine")
    with pytest.raises(ConfigError, match=r"^scale: draft=-1$"):
        cluster.resize(cell("mine"), 1, -1, None)


def test_down_clears_its_state_file_only(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Mock(close_cell=Mock(side_effect=AnotherCell("it is another's")))
    monkeypatch.setattr(down, "joined", lambda _: nullcontext(ray))
    write_cell(cell("mine"))
    said: list[str] = []
    down.take_down(said.append, 0.0)
    assert said[0] == "it is another's"
    assert not cell_file().exists()
