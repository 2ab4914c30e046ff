"""Waiting for a cell, without Ray."""

import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from deploy import awaiting
from deploy.fleet import AnotherCell, NoAnswer
from dspark.client import CellStatus, LaneStatus, NoCell, ProcessStatus, find_cell
from dspark.client.cell import remove_cell, write_cell
from dspark.errors import Unavailable
from tests.noted_cell import CELL


def _row(name: str, endpoint: str = "", **told: Any) -> dict[str, Any]:
    """What a controller reports of a process that serves, but for what is told."""
    quiet = {"reason": "", "unplaced": False, "fatal": False, "failures": 0}
    row = {**quiet, "name": name, "phase": "serving", "pid": 1, "endpoint": endpoint, "http": ""}
    return row | told


def test_scale_asks_the_coordinator_where_it_is_by_now(monkeypatch: pytest.MonkeyPatch) -> None:
    write_cell(replace(CELL, endpoint="old:1", http="http://old:2"))
    rows = [
        _row("coordinator/0", "new:1", http="http://new:2"),
        _row("frontend/0", "new:3"),
        _row("frontend/1", "new:4"),
        _row("verify/0", "new:5"),
    ]
    resize = Mock(side_effect=[NoAnswer("it does not answer"), (2, 1, 700.0), (2, 1, 700.0)])
    ray = SimpleNamespace(resize=resize, report=lambda _: rows)
    waits = Mock(return_value=(1, 1))
    monkeypatch.setattr(awaiting, "joined", lambda _: nullcontext(ray))
    monkeypatch.setattr(awaiting, "operating", nullcontext)
    monkeypatch.setattr(awaiting, "await_lanes", waits)
    assert awaiting.scale(2, None, None, lambda _: None) == (1, 1)
    assert resize.call_count == 2, "a controller that Ray restarts is waited for"
    cell = find_cell()
    assert (cell.endpoint, cell.http, cell.frontends) == ("new:1", "http://new:2", "new:3,new:4")
    client, report, deadline, _ = waits.call_args.args
    assert (client, report()) == (cell, rows)
    assert 690.0 < deadline - time.monotonic() <= 700.0, "as long as the controller says"
    assert awaiting.scale(None, None, True, lambda _: None) == (2, 1)
    assert waits.call_count == 1, "nothing is to come up for a word about autoscaling"
    monkeypatch.setattr(awaiting, "RESTART_S", -1.0)
    for error, said in ((NoAnswer("deaf"), "not taken: deaf"), (Unavailable("gone"), "gone")):
        resize.side_effect = error
        with pytest.raises(Unavailable, match=said):
            awaiting.scale(2, None, None, lambda _: None)
    remove_cell()  # as another command does
    with pytest.raises(NoCell):
        report()


VERIFIER, DRAFTER = (
    ProcessStatus(role=name.partition("/")[0], name=name, state="serving")
    for name in ("verify/0", "draft/0")
)
FED, UNFED = (LaneStatus(verifier="verify/0", drafters=each) for each in (("draft/0",), ()))
CONNECTED = CellStatus((VERIFIER, DRAFTER), lanes=(FED,))


def test_what_a_coordinator_lacks_is_told() -> None:
    lost = replace(DRAFTER, state="lost", detail="away")
    left, unfed = replace(VERIFIER, name="verify/1"), replace(UNFED, verifier="verify/1")
    told = {
        "": CONNECTED,
        "draft/0 is not connected": replace(CONNECTED, processes=(VERIFIER,)),
        "draft/0 is serving, in no lane, verify/0 is serving, in no lane": replace(
            CONNECTED, lanes=()
        ),
        "draft/0 is serving, in no lane": replace(CONNECTED, lanes=(UNFED,)),
        "draft/0 is lost (away)": replace(CONNECTED, processes=(VERIFIER, lost)),
        "verify/1 is serving": replace(
            CONNECTED, processes=(*CONNECTED.processes, left), lanes=(FED, unfed)
        ),
    }
    wanted = {"verify/0", "draft/0"}
    assert [awaiting.missing(status, wanted) for status in told.values()] == [*told]
    alarmed = replace(CONNECTED, processes=(VERIFIER, replace(DRAFTER, detail="an alarm")))
    assert awaiting.missing(alarmed, wanted) == "", "it serves all the same"


def test_a_coordinator_that_does_not_answer_is_waited_for_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(awaiting, "REMIND_EVERY_S", 0.0)
    told: list[str] = []
    client: Any = Mock(status=Mock(side_effect=[Unavailable("nobody there"), CONNECTED, CONNECTED]))
    names = ["coordinator/0", "verify/0", "draft/0"]

    def report() -> list[dict[str, Any]]:
        return [*map(_row, names), _row("draft/1", phase="stopping")]

    assert awaiting.await_lanes(client, report, float("inf"), told.append) == (1, 1)
    assert told == ["still waiting: nobody there"]
    names.append("verify/1")
    with pytest.raises(Unavailable, match="not connected in time: verify/1 is not connected"):
        awaiting.await_lanes(client, report, 0.0, told.append)


@pytest.mark.parametrize("wait", [awaiting.await_replicas, awaiting.await_lanes])
def test_a_controller_that_ray_restarts_meanwhile_is_waited_for(
    wait: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awaiting, "REMIND_EVERY_S", 0.0)
    told: list[str] = []
    client = [Mock(status=Mock(return_value=CONNECTED))] * (wait is awaiting.await_lanes)
    rows = [_row("verify/0"), _row("draft/0")]
    report = Mock(side_effect=[NoAnswer("it does not answer"), rows])
    wait(*client, report, float("inf"), told.append)
    assert told[0] == "still waiting: it does not answer"
    for gone in (Unavailable("the controller is gone"), AnotherCell("it is another's")):
        with pytest.raises(type(gone), match=str(gone)):
            wait(*client, Mock(side_effect=gone), float("inf"), told.append)


def test_sizes_that_another_command_changes_meanwhile_are_waited_for() -> None:
    alone = CellStatus((VERIFIER,), lanes=(UNFED,))
    for there, counts in ((CONNECTED, (1, 2)), (alone, (2, 1))):
        wanted = [[_row("verify/0"), _row("draft/0")][:count] for count in counts]
        client: Any = Mock(status=Mock(return_value=there))
        report = Mock(side_effect=wanted)
        found = awaiting.await_lanes(client, report, float("inf"), lambda _: None)
        assert found == (1, counts[1] - 1)


def test_every_change_and_address_of_a_replica_is_told_once() -> None:
    """Addresses of front ends whose port was 0 stand nowhere else."""
    said: list[str] = []
    before = [_row("frontend/0", phase="down"), _row("verify/0", phase="starting")]
    rows = [_row("frontend/0", "here:1", http="http://here:2"), _row("verify/0", "here:3")]
    awaiting.await_replicas(Mock(side_effect=[before, before, rows]), float("inf"), said.append)
    assert said == [
        "verify/0: starting",
        "frontend/0: serving at here:1 and http://here:2/v1 (pid 1)",
        "verify/0: serving at here:3 (pid 1)",
    ]


def test_only_a_replica_that_does_not_serve_ends_the_wait() -> None:
    again = [_row("draft/0", reason="lost", failures=3)]
    assert awaiting.await_replicas(lambda: again, 0.0, lambda _: None) == again


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"phase": "down", "reason": "lost", "failures": 3}, "cannot start: lost"),
        (
            {"phase": "starting", "reason": "no node with 1 GPU free", "unplaced": True},
            "cannot be placed: no node with 1 GPU free",
        ),
    ],
)
def test_what_cannot_start_or_be_placed_ends_the_wait_with_the_reason(
    told: dict[str, Any], said: str
) -> None:
    with pytest.raises(Unavailable, match=f"draft/0 {said}"):
        awaiting.await_replicas(lambda: [_row("draft/0", **told)], 0.0, lambda _: None)
