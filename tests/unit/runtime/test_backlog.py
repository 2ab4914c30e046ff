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


def test_messages_are_counted_until_they_are_seen(backlog: Backlog) -> None:
    backlog.read(1)
    backlog.read(1)
    backlog.read(1)
    with pytest.raises(Overloaded, match="3 messages of 3 bytes"):
        backlog.read(1)
    backlog.seen(1)
    backlog.read(1)


def test_bytes_are_counted_until_they_are_seen(backlog: Backlog) -> None:
    backlog.read(60)
    backlog.read(40)
    with pytest.raises(Overloaded):
        backlog.read(1)
    backlog.seen(60)
    backlog.read(60)
    with pytest.raises(Overloaded):
        backlog.read(1)


def test_a_message_alone_may_be_larger(backlog: Backlog) -> None:
    backlog.read(1000)
    with pytest.raises(Overloaded):
        backlog.read(1)
    backlog.seen(1000)
    backlog.read(1)
