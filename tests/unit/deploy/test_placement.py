"""Where processes of a cell run on a machine of two processors."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.cell_plan import plan_topology
from deploy.config import ClusterConfig
from deploy.topology import homes, resized


@pytest.fixture(autouse=True)
def _two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deploy.cell_plan.usable", lambda: (3, 7))


def _cpus(config: ClusterConfig, **environ: str) -> dict[str, object]:
    topology = plan_topology(
        config, file=None, environ=environ, port=4242, token_files={"token_file": Path("/s/token")}
    )
    return {replica.name: replica.settings["cpus"] for replica in resized(topology, 2, 2).replicas}


def test_only_a_machine_of_two_is_placed_and_only_workers_of_one_thread() -> None:
    assert homes((3, 7)) == {"verify/0": "3", "draft/0": "3", "coordinator/0": "7"}
    assert homes(()) == homes((0,)) == homes((0, 1, 2)) == homes((3, 7), threads=2) == {}


def test_a_cell_on_a_cluster_of_its_own_is_placed_and_stays_so_when_it_is_resized() -> None:
    free = {"verify/1": None, "draft/1": None, "frontend/0": None}
    placed = {"coordinator/0": "7", "verify/0": "3", "draft/0": "3"}
    assert _cpus(ClusterConfig(target="t", drafter="d", frontends=1)) == placed | free


def test_what_a_setting_says_counts_and_one_worker_of_many_threads_leaves_all_free() -> None:
    config = ClusterConfig(target="t", drafter="d")
    said = _cpus(config, DSPARK_VERIFY__CPUS="3,7", DSPARK_COORDINATOR__CPUS="3")
    assert (said["verify/0"], said["verify/1"], said["draft/0"], said["coordinator/0"]) == ("3,7", "3,7", "3", "3")
    assert set(_cpus(config, DSPARK_DRAFT__THREADS="2").values()) == {None}


def test_a_cluster_that_is_joined_is_left_to_its_machines() -> None:
    assert set(_cpus(ClusterConfig(target="t", drafter="d", address="head:6379")).values()) == {None}
