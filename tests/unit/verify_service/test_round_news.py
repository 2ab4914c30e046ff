"""When news of rounds are said: behind the turn, once orders have left, or in a later turn where
none leaves."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from dspark.rounds.control import PassReport, Up
from dspark.rounds.events import DrafterEvent, Report
from verify_service import round_news
from verify_service.round_news import RoundNews

FIRST, SECOND = DrafterEvent(1, "late"), DrafterEvent(2, "late")


class Bench:
    """Jobs wait until they are run; time is what the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jobs, self.said = list[Callable[[], None]](), list[list[Up]]()
        self.leaving, self.now = False, 100.0
        self.timers = list[tuple[float, Callable[[], None]]]()
        device: Any = SimpleNamespace(post=lambda job, *_, **__: self.jobs.append(job))
        events: Any = SimpleNamespace(
            call_soon_threadsafe=lambda job, *args: job(*args), call_later=self._later
        )
        self.news = RoundNews(device, events, lambda job: job(), self._say)
        self.news.leaving = lambda: self.leaving
        monkeypatch.setattr(round_news.time, "monotonic", lambda: self.now)

    def _say(self, news: Sequence[Up]) -> None:
        self.said.append(list(news))

    def _later(self, wait_s: float, job: Callable[[], None]) -> None:
        self.timers.append((self.now + wait_s, job))

    def turn(self, *news: Up) -> None:
        """These are told of, and everything that waits is run."""
        for each in news:
            self.news.add(each)
        self.news.tell()
        self.run()

    def run(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()

    def time_comes(self) -> None:
        """Of the timer that is set; there is one at most."""
        ((self.now, job),), self.timers = self.timers, []
        job()
        self.run()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_they_are_said_behind_the_turn_together_and_made_only_then(bench: Bench) -> None:
    report = PassReport(Report(1, []))
    made = list[int]()
    bench.news.add(FIRST, lambda: made.append(1) or report)  # type: ignore[func-returns-value]
    bench.news.tell()
    bench.news.add(SECOND)
    bench.news.tell()
    assert not made
    assert not bench.said
    bench.run()
    assert bench.said == [[FIRST, report, SECOND]]
    bench.turn()
    assert len(bench.said) == 1, "there is nothing to say"


@pytest.mark.parametrize("left", [True, False])
def test_they_wait_for_orders_to_leave_but_to_a_later_turn_at_most(
    bench: Bench, left: bool
) -> None:
    bench.leaving = True
    bench.news.add(FIRST)
    bench.turn()
    bench.turn()
    assert not bench.said
    if left:
        bench.leaving = False
        bench.news.orders_left()
        bench.news.orders_left()
    else:
        bench.now += round_news.LEAVE_S
        bench.news.tell()
    bench.run()
    assert bench.said == [[FIRST]]


def test_orders_that_do_not_leave_hold_nothing_back_for_long_where_no_turn_comes(
    bench: Bench,
) -> None:
    """A drafter that hangs takes nothing, and a lane whose answers are over has nothing to do."""
    bench.leaving = True
    for news in (FIRST, SECOND):
        began = bench.now
        bench.turn(news)
        assert len(bench.timers) == 1
        bench.time_comes()
        assert bench.said.pop() == [news]
        assert bench.now - began <= round_news.LOOK_S
    bench.turn(FIRST)
    bench.leaving = False
    bench.news.orders_left()
    bench.run()
    assert bench.said.pop() == [FIRST]
    bench.leaving = True
    bench.now += round_news.LOOK_S - round_news.LEAVE_S / 2
    bench.turn(SECOND)
    bench.time_comes()
    assert not bench.said, "it looks at who waits, and has waited long enough"
    bench.time_comes()
    assert bench.said == [[SECOND]]
