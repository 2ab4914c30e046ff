"""What two looks at a cell say together, and what measured costs ask for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deploy.load_report import PER_TOKEN, TTFT, LoadSample, LoadWindow, percentile
from deploy.sizing import StepCurve, hint, hint_of
from dspark.client import CellStatus, Distribution, LaneStatus, MeasuredCost, ProcessStatus

BOUNDS = [0.1, 0.2, 0.4]


def _status(tokens: float, busy_s: float, counts: list[int], *, incarnation: int = 1, waits: int = 0) -> CellStatus:
    return CellStatus(
        processes=(
            ProcessStatus(
                role="draft", name="draft/0", incarnation=incarnation, pid=7, state="serving",
                busy_s=busy_s, wait_s=0.01 * waits, waits=waits,
            ),
            ProcessStatus(
                role="verify", name="verify/0", pid=8, state="serving", pages_held=30, pages_total=40
            ),
        ),
        lanes=(LaneStatus(verifier="verify/0", drafters=("draft/0",), running=5, waiting=1),),
        queued=2,
        totals={"dspark_generation_tokens_total": tokens},
        distributions=(Distribution(TTFT, tuple(BOUNDS), tuple(counts), sum=1.0),),
    )  # fmt: skip


def _window(first: CellStatus, second: CellStatus, span_s: float = 4.0) -> LoadWindow:
    window = LoadWindow(10.0)
    window.add(LoadSample(100.0, first))
    window.add(LoadSample(100.0 + span_s, second))
    return window


def test_everything_is_a_difference() -> None:
    window = _window(_status(1000, 50.0, [9, 0, 0, 0]), _status(1400, 53.0, [9, 10, 0, 0], waits=10))
    assert window.rate("dspark_generation_tokens_total") == 100
    reading = window.reading()
    assert reading.drafter_busy == 0.75
    assert reading.draft_wait_s == pytest.approx(0.01)
    assert (reading.streams, reading.queued, reading.pages) == (8, 2, 0.75)
    assert reading.ttft_s == pytest.approx(0.195), "the nine of before count for nothing"
    assert window.percentile(PER_TOKEN, 0.5) is None


def test_a_coordinator_that_came_back_counts_from_nothing() -> None:
    window = _window(_status(1000, 1, [9, 9, 9, 9]), _status(40, 1, [0, 4, 0, 0]))
    assert window.total("dspark_generation_tokens_total") == 40
    assert window.percentile(TTFT, 0.5) == pytest.approx(0.15)


def test_a_drafter_that_was_replaced_has_no_share_yet() -> None:
    assert _window(_status(0, 50, []), _status(0, 1, [], incarnation=2)).reading().drafter_busy is None


def test_a_window_forgets_but_keeps_two() -> None:
    window = LoadWindow(10.0)
    for at in (0.0, 5.0, 9.0, 16.0, 60.0):
        window.add(LoadSample(at, CellStatus()))
    assert window.span_s == 44.0


@pytest.mark.parametrize(("share", "seconds"), [(0.5, 0.1), (0.75, 0.15), (0.95, 0.19), (1.0, 0.2)])
def test_percentiles_are_linear_inside_a_bucket(share: float, seconds: float) -> None:
    assert percentile(BOUNDS, [10, 10, 0, 0], share) == pytest.approx(seconds)
    assert percentile(BOUNDS, [0, 0, 0, 5], share) == 0.4, "what lies beyond the last bound is at least that"


DRAFT = StepCurve((1, 8, 16), (0,), ((0.002,), (0.005,), (0.009,)))
VERIFY = StepCurve((1, 64), (0,), ((0.003,), (0.012,)))


def test_a_drafter_that_is_quick_beside_its_verifier_is_enough() -> None:
    said = hint(DRAFT, VERIFY, verifiers=1, streams=4, verified=3, context=128)
    assert said.drafters == 1
    assert said.busy < 0.7


def test_more_verifiers_want_more_drafters() -> None:
    wanted = [hint(DRAFT, VERIFY, verifiers=n, streams=16 * n, verified=3, context=128).drafters for n in (1, 2, 4, 8)]
    assert wanted == sorted(wanted)
    assert wanted[-1] > wanted[0]


def test_the_fewest_drafters_that_stand_below_the_target() -> None:
    slow, verify = StepCurve((1, 16), (0,), ((0.008,), (0.188,))), StepCurve((1, 128), (0,), ((0.03,), (0.04,)))
    said = hint(slow, verify, verifiers=1, streams=16, verified=2, context=0)
    one_less = slow.at(16 / 2 / (said.drafters - 1), 0)
    assert said.busy <= 0.7
    assert said.cohorts == 2, "halves that take turns are faster, so lanes have two"
    assert 2 * one_less / max(2 * one_less, 2 * said.verify_s, one_less + said.verify_s) > 0.7


def test_one_cohort_where_halves_save_nothing() -> None:
    flat = StepCurve((1, 16), (0,), ((0.01,), (0.01,)))
    said = hint(flat, StepCurve((1, 64), (0,), ((0.01,), (0.01,))), verifiers=1, streams=16, verified=2, context=0)
    assert (said.cohorts, said.drafters) == (1, 1)
    assert said.busy == pytest.approx(0.5)


def test_a_drafter_slower_than_any_split_can_mend_gets_one_sequence_each() -> None:
    said = hint(StepCurve((1,), (0,), ((1.0,),)), VERIFY, verifiers=1, streams=5, verified=2, context=0)
    assert said.drafters == 5


def test_a_cell_is_read_as_it_is() -> None:
    status = _status(0, 0, [])
    assert hint_of(_window(status, status)) is None, "no curve, no guess"
    lane = replace(
        status.lanes[0],
        draft_cost=MeasuredCost((1, 16), (), ((0.002,), (0.03,))),
        verify_cost=MeasuredCost((1, 64), (0, 512), ((0.002, 0.004), (0.01, 0.02))),
    )
    status = replace(status, lanes=(lane,))
    found = hint_of(_window(status, status), streams=16)
    assert found is not None
    assert found.verify_s == pytest.approx(_verify_at(16 * 3 / found.cohorts), rel=1e-6)
    assert "16 streams on 1 verifier want" in found.sentence()


def _verify_at(tokens: float) -> float:
    """By hand, at a context of 256."""
    share = (tokens - 1) / 63
    return (0.002 + (0.01 - 0.002) * share + 0.004 + (0.02 - 0.004) * share) / 2
