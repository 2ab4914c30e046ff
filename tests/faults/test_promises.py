"""Every promise is kept in one story, and a short walk of the machine of row 16 breaks nothing.
Rows tell many and walk for longer, and `make broken` shows that each promise can fail."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from faults.machine import CellMachine
from faults.promises import PROMISES


@pytest.mark.parametrize("name", PROMISES)
def test_a_promise_is_kept(name: str) -> None:
    assert PROMISES[name](0) == []


def test_a_short_walk_breaks_no_invariant() -> None:
    how = settings(
        max_examples=3,
        stateful_step_count=20,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(CellMachine, settings=how)
