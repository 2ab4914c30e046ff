"""Decisions of the controller, without processes, ports or clocks."""

import pytest

from deploy import reconcile
from deploy.reconcile import Observed, Phase, plan


@pytest.mark.parametrize(
    ("phase", "started", "stopped"),
    [
        (Phase.STARTING, [], ["x"]),
        (Phase.SERVING, [], ["x"]),
        (Phase.DOWN, ["x"], ["x"]),
        (Phase.STOPPING, [], []),
    ],
)
def test_one_that_runs_is_not_started_nor_one_that_stops_stopped_again(
    phase: Phase, started: list[str], stopped: list[str]
) -> None:
    seen = {"x": Observed(phase, 0.0)}
    assert plan({"x"}, seen, 99.0) == (started, [])
    assert plan(set(), seen, 99.0) == ([], stopped)


def test_what_is_desired_and_absent_is_started_in_a_stable_order() -> None:
    assert plan({"verify/1", "draft/0", "verify/0"}, {}, 0.0) == (
        ["draft/0", "verify/0", "verify/1"],
        [],
    )


def test_a_replica_that_keeps_failing_waits_twice_as_long_each_time_up_to_a_bound() -> None:
    seen, now, waits = reconcile.starting(None, 0.0), 0.0, []
    for _ in range(9):
        seen = reconcile.down(seen, now, "no memory")
        waits.append(reconcile.delay_s(seen))
        assert plan({"x"}, {"x": seen}, now + waits[-1] - 0.001) == ([], [])
        now += waits[-1]
        assert plan({"x"}, {"x": seen}, now) == (["x"], [])
        seen = reconcile.starting(seen, now)
    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_a_long_life_is_forgiven() -> None:
    seen = Observed(Phase.SERVING, 0.0, failures=6)
    assert reconcile.down(seen, reconcile.FORGIVEN_AFTER_S, "killed").failures == 1
    assert reconcile.down(seen, reconcile.FORGIVEN_AFTER_S - 1, "killed").failures == 7
    started = reconcile.starting(seen, 0.0)
    assert reconcile.down(started, reconcile.FORGIVEN_AFTER_S, "too late").failures == 7


def test_a_fatal_start_is_not_repeated_at_once() -> None:
    seen = reconcile.down(
        reconcile.starting(None, 0.0), 0.0, "model.safetensors lacks fc.weight", fatal=True
    )
    assert plan({"draft/0"}, {"draft/0": seen}, 0.5) == ([], [])
    assert plan({"draft/0"}, {"draft/0": seen}, 1.0) == (["draft/0"], [])
    again = reconcile.serving(reconcile.starting(seen, 1.0), 2.0)
    assert again == Observed(Phase.SERVING, 2.0, failures=1), "what it told is over"
