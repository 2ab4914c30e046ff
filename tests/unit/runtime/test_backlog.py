"""What waits between two threads is bounded by its number and by its bytes."""

from __future__ import annotations

import pytest

from dspark.errors import Overloaded
from dspark.runtime import backlog as bounds
from dspark.runtime.backlog import Backlog


@pytest.fixture
def backlog(monkeypatch: pytest.MonkeyPatch) -> Backlog:
    monkeypatch.setattr(bounds, "MESSAGES", 3)
    monkeypatch.setattr(bounds, "BYTES", 100)
    return Backlog()


@pytest.mark.parametrize(
    ("sizes", "seen", "told"),
    [
        ([1, 1, 1], 1, "3 messages of 3 bytes"),
        ([60, 40], 60, "2 messages of 100 bytes"),
        ([1000], 1000, "1 messages of 1000 bytes"),
    ],
    ids=["messages", "bytes", "one alone may be larger"],
)
def test_what_was_read_is_counted_until_it_is_seen(
    backlog: Backlog, sizes: list[int], seen: int, told: str
) -> None:
    for size in sizes:
        backlog.read(size)
    with pytest.raises(Overloaded, match=told):
        backlog.read(1)
    backlog.seen(seen)
    backlog.read(min(seen, 60))
    with pytest.raises(Overloaded):
        backlog.read(100)
