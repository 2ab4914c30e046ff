"""What two looks at a cell say together."""

from dataclasses import replace
from typing import Any

import pytest

from deploy.load_report import PER_TOKEN, TTFT, LoadWindow, percentile
from dspark.client import CellStatus, Distribution, LaneStatus, ProcessStatus

BOUNDS = [0.1, 0.2, 0.4]


def _status(
    tokens: float, busy_s: float, counts: list[int], *, waits: int = 0, **drafter: Any
) -> CellStatus:
    told = {"incarnation": 1, "pid": 7, "state": "serving", **drafter}
    return CellStatus(
        processes=(
            ProcessStatus(
                role="draft", name="draft/0", busy_s=busy_s, wait_s=0.01 * waits, waits=waits,
                pages_held=40, pages_total=40, **told,
            ),
            ProcessStatus(
                role="verify", name="verify/0", pid=8, state="serving",
                pages_held=30, pages_total=40,
            ),
            ProcessStatus(
                role="verify", name="verify/1", pid=9, state="lost", pages_held=0, pages_total=40,
            ),
        ),
        lanes=(LaneStatus(verifier="verify/0", drafters=("draft/0",), running=5, waiting=1),),
        queued=2,
        totals={"dspark_generation_tokens_total": tokens},
        distributions=(Distribution(TTFT, tuple(BOUNDS), tuple(counts), sum=1.0),),
    )  # fmt: skip


def _window(first: CellStatus, second: CellStatus) -> LoadWindow:
    window = LoadWindow(10.0)
    window.add(100.0, first)
    window.add(104.0, second)
    return window


def test_everything_is_a_difference() -> None:
    before = _status(1000, 50.0, [9, 0, 0, 0], waits=5)
    window = _window(before, _status(1400, 53.0, [9, 10, 0, 0], waits=15))
    assert window.rate("dspark_generation_tokens_total") == 100
    reading = window.reading()
    assert reading.drafter_busy == 0.75
    assert reading.draft_wait_s == pytest.approx(0.01)
    assert (reading.streams, reading.queued, reading.pages) == (8, 2, 0.75)
    assert reading.ttft_s == pytest.approx(0.195), "the nine of before count for nothing"
    assert (reading.queue_s, reading.itl_s) == (None, None)
    assert window.percentile(PER_TOKEN, 0.5) is None
    assert _window(before, before).reading().ttft_s is None, "nothing ended in that time"


def test_a_coordinator_that_came_back_counts_from_nothing() -> None:
    window = _window(_status(1000, 1, [9, 9, 9, 9]), _status(40, 1, [0, 4, 0, 0]))
    assert window.total("dspark_generation_tokens_total") == 40
    assert window.percentile(TTFT, 0.5) == pytest.approx(0.15)
    other = Distribution(TTFT, (0.3,), (5, 1), sum=1.0)  # of another release
    window = _window(replace(_status(0, 1, []), distributions=(other,)), window.newest)
    assert window.percentile(TTFT, 0.5) == pytest.approx(0.15)


def test_a_drafter_that_has_not_told_twice_has_no_share() -> None:
    twice: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"incarnation": 2}),  # it was replaced
        ({}, {"pid": 0}),  # it was too busy to tell
        ({"pid": 0}, {}),
        ({}, {"state": "draining"}),
    ]
    for before, now in twice:
        window = _window(_status(0, 50, [], **before), _status(0, 51, [], **now))
        assert window.reading().drafter_busy is None
    assert _window(_status(0, 50, []), _status(0, 59, [])).reading().drafter_busy == 1.0


def test_a_window_forgets_but_keeps_two() -> None:
    window, spans = LoadWindow(10.0), list[float]()
    for at in (0.0, 5.0, 9.0, 16.0, 60.0):
        window.add(at, CellStatus())
        spans.append(window.span_s)
    assert spans == [0.0, 5.0, 9.0, 11.0, 44.0]


@pytest.mark.parametrize(("share", "seconds"), [(0.5, 0.1), (0.75, 0.15), (0.95, 0.19), (1.0, 0.2)])
def test_percentiles_are_linear_inside_a_bucket(share: float, seconds: float) -> None:
    assert percentile(BOUNDS, [10, 10, 0, 0], share) == pytest.approx(seconds)
    assert percentile(BOUNDS, [0, 0, 0, 5], share) == 0.4, "beyond the last bound: at least that"
