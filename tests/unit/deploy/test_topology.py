"""Desired replicas from a configuration."""

import pytest

from deploy.config import ClusterConfig
from deploy.topology import ProcessRole, desired, resized
from dspark.errors import ConfigError


def test_labels_of_a_pool_are_its_own() -> None:
    config = ClusterConfig(target="t", drafter="d", verifier_selector="zone=a")
    told = {str(replica.role): replica.selector for replica in desired(config, {}).replicas}
    assert told == {"coordinator": {}, "verify": {"zone": "a"}, "draft": {}}


def test_front_ends_come_last_and_stay_when_pools_are_resized() -> None:
    topology = desired(ClusterConfig(target="t", drafter="d", frontends=2), {})
    assert [replica.name for replica in topology.replicas][-2:] == ["frontend/0", "frontend/1"]
    assert resized(topology, 2, 0).sizes[ProcessRole.FRONTEND] == 2


def test_resizing_keeps_names_and_drops_the_highest_numbers() -> None:
    before = desired(
        ClusterConfig(target="t", drafter="d", verifiers=2, drafters=0),
        {ProcessRole.DRAFT: {"drafter": "d"}},
    )
    after = resized(before, 1, 2)
    assert after.names == {"coordinator/0", "verify/0", "draft/0", "draft/1"}
    assert {r.settings["drafter"] for r in after.replicas if r.role is ProcessRole.DRAFT} == {"d"}
    assert resized(after, 2, 0) == before
    for verifiers, drafters in ((0, 1), (1, -1)):
        with pytest.raises(ConfigError):
            resized(before, verifiers, drafters)
