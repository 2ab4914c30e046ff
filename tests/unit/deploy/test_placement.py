"""How the workers of a cell divide the processors of a machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from deploy.autoscale import AutoscaleConfig
from deploy.cell_plan import largest, plan_topology
from deploy.config import ClusterConfig
from deploy.topology import ProcessRole, resized, sizes_of


@pytest.fixture(autouse=True)
def _two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dspark.runtime.process.usable", lambda: (3, 7))
    monkeypatch.setattr("dspark.runtime.process.CPU_QUOTA", Path("none"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def _said(
    key: str, config: ClusterConfig, most: Mapping[ProcessRole, int] | None = None, **environ: str
) -> dict[str, object]:
    files = {"token_file": Path("/s/token")}
    most = most or sizes_of(config)
    topology = plan_topology(
        config, file=None, environ=environ, port=4242, token_files=files, most=most
    )
    replicas = resized(topology, 2, 2).replicas.items()
    return {name: replica.settings.get(key) for name, replica in replicas}


def test_where_nobody_says_the_verifier_has_both_and_several_share_them() -> None:
    config = ClusterConfig(target="t", drafter="d")
    threads = {"verify/0": 2, "verify/1": 2, "draft/0": 1, "draft/1": 1, "coordinator/0": None}
    assert _said("threads", config) == threads
    two = ClusterConfig(target="t", drafter="d", verifiers=2)
    assert _said("threads", two)["verify/0"] == 1
    assert _said("threads", config, DSPARK_VERIFY__CPUS="3")["verify/0"] == 1


def test_workers_that_autoscaling_may_bring_have_their_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dspark.runtime.process.usable", lambda: tuple(range(16)))
    config = ClusterConfig(target="t", drafter="d")
    grows = AutoscaleConfig(enabled=True, max_verifiers=4, max_drafters=2)
    for most, threads in (
        (largest(config, grows), (3, 2)),
        (largest(config, AutoscaleConfig()), (12, 4)),
    ):
        said = _said("threads", config, most=most)
        assert (said["verify/0"], said["draft/0"]) == threads


def test_a_cluster_that_is_joined_is_left_to_its_machines() -> None:
    joined = ClusterConfig(target="t", drafter="d", address="head:6379")
    # the process decides, by what Ray reserves for it
    assert _said("threads", joined)["verify/0"] == 0
