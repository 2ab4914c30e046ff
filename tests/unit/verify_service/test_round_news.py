"""When news of rounds are said: behind the turn, once orders have left, or in a later turn where none leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from dspark.rounds.control import PassReport, Up
from dspark.rounds.events import DrafterEvent, Report
from verify_service import round_news
from verify_service.round_news import RoundNews, Unsaid

FIRST, SECOND = DrafterEvent(1, "late"), DrafterEvent(2, "late")


class Bench:
    """Jobs wait until they are run; time is what the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jobs, self.said = list[Callable[[], None]](), list[list[Up]]()
        self.leaving, self.now = False, 100.0
        device: Any = SimpleNamespace(post=lambda job, *_, **__: self.jobs.append(job))
        self.news = RoundNews(device, device, lambda job: job(), self._say)
        self.news.leaving = lambda: self.leaving
        monkeypatch.setattr(round_news.time, "monotonic", lambda: self.now)

    def _say(self, news: Sequence[Up]) -> None:
        self.said.append(list(news))

    def run(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_they_are_said_behind_the_turn_together_and_made_only_then(bench: Bench) -> None:
    report = PassReport(Report(1, 1, []))
    made = list[int]()
    bench.news.add(FIRST, Unsaid(lambda: made.append(1) or report))  # type: ignore[func-returns-value]
    bench.news.tell()
    bench.news.add(SECOND)
    bench.news.tell()
    assert not made
    assert not bench.said
    bench.run()
    assert bench.said == [[FIRST, report, SECOND]]
    bench.news.tell()
    bench.run()
    assert len(bench.said) == 1, "there is nothing to say"


def test_they_wait_for_orders_to_leave_and_go_as_soon_as_they_have(bench: Bench) -> None:
    bench.leaving = True
    bench.news.add(FIRST)
    bench.news.tell()
    bench.run()
    assert not bench.said
    bench.leaving = False
    bench.news.orders_left()
    bench.news.orders_left()
    bench.run()
    assert bench.said == [[FIRST]]


def test_orders_that_do_not_leave_hold_them_back_to_a_later_turn_at_most(bench: Bench) -> None:
    bench.leaving = True
    bench.news.add(FIRST)
    bench.news.tell()
    bench.run()
    bench.news.tell()
    bench.run()
    assert not bench.said
    bench.now += round_news.LEAVE_S
    bench.news.tell()
    bench.run()
    assert bench.said == [[FIRST]]
