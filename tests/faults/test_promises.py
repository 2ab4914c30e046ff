"""Every promise is kept in one story; rows tell many, and `tests/broken` shows that each can
fail."""

from __future__ import annotations

import pytest

from faults.promises import PROMISES


@pytest.mark.parametrize("name", PROMISES)
def test_a_promise_is_kept(name: str) -> None:
    assert PROMISES[name](0) == []
