"""Every promise is kept in one story, and a short walk of the machine of row 16 breaks nothing.
Rows tell many and walk for longer, and `make broken` shows that each promise can fail."""

import pytest

from tests.faults.machine import CellMachine, walk
from tests.faults.promises import PROMISES


@pytest.mark.parametrize("name", PROMISES)
def test_a_promise_is_kept(name: str) -> None:
    assert PROMISES[name](0) == []


def test_a_short_walk_breaks_no_invariant() -> None:
    walk(CellMachine, 3, 20, derandomize=True)
