"""Every promise is kept in one story; rows tell many, and `tests/broken` shows that each can fail."""

from __future__ import annotations

import pytest

from faults import simulated
from faults.promises import PROMISES


@pytest.mark.parametrize("name", PROMISES)
def test_a_promise_is_kept(name: str) -> None:
    assert PROMISES[name](0) == []


@pytest.mark.parametrize("name", sorted(set(PROMISES) - {"prefixes"}))  # whose pages are counted in sessions alone
def test_a_promise_is_kept_where_verifiers_run_their_rounds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "ROUNDS", "verifier")
    assert PROMISES[name](0) == []
