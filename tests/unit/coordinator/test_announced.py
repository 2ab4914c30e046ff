"""What an announcement says is checked by field before anything is connected."""

import pytest

from coordinator.cells.control import _addresses
from coordinator.workers.worker import WorkerRole
from dspark.errors import InvalidRequest
from dspark.wire.v1 import control_pb2


def told(
    endpoint: str, role: control_pb2.Role = control_pb2.ROLE_DRAFT
) -> control_pb2.WorkerEndpoint:
    return control_pb2.WorkerEndpoint(role=role, endpoint=endpoint, incarnation=7)


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "host",
        ":1",
        "http://host:1",
        "host:",
        "host:0",
        "host:99999",
        "host:\u0661",
        "h:" + "9" * 5000,
    ],
)
def test_an_endpoint_that_nobody_could_connect_to_is_refused_by_field(endpoint: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        _addresses([told("host:1"), told(endpoint)])
    assert refused.value.field == "workers[1].endpoint"
    assert len(str(refused.value)) < 200


def test_a_coordinator_is_no_worker_and_a_worker_without_a_name_is_numbered() -> None:
    with pytest.raises(InvalidRequest, match=r"workers\[1\]\.role"):
        _addresses([told("host:1"), told("host:2", control_pb2.ROLE_COORDINATOR)])
    _, address = _addresses([told("host:1"), told("[::1]:65535")])
    assert (address.role, address.name) == (WorkerRole.DRAFT, "draft/1")


def test_a_process_that_is_announced_twice_is_refused_by_field() -> None:
    one, other = told("host:1"), told("host:2")
    assert [each.endpoint for each in _addresses([one, other])] == ["host:1", "host:2"]
    for role in (control_pb2.ROLE_DRAFT, control_pb2.ROLE_VERIFY):
        with pytest.raises(InvalidRequest, match="announced twice") as refused:
            _addresses([one, other, told("host:1", role)])
        assert refused.value.field == "workers[2].endpoint"
    after = control_pb2.WorkerEndpoint(
        role=control_pb2.ROLE_DRAFT, endpoint="host:1", incarnation=8
    )
    assert len(_addresses([one, after])) == 2, "the process that comes after it there"
