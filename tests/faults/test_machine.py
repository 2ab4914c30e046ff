"""A short walk of the machine of row 16; the row walks for longer."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from faults.machine import CellMachine


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
