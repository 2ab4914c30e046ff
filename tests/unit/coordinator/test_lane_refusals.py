"""Prompts that a verifier has no room or time for, or refuses, in simulated time."""

import asyncio
from collections.abc import Callable

import pytest

from coordinator.queue.scheduler import FORM_RETRY_S
from dspark.errors import (
    DsparkError,
    InvalidRequest,
    Overloaded,
    PeerError,
    Unavailable,
    Unsupported,
)
from dspark.rounds.control import Admission, PassReport, Up
from dspark.rounds.events import GoneReason, Release, Released, ReleaseMode
from dspark.types import Refusal, RefusalReason
from tests.fakes import read
from tests.rounds_cell import RoundsCell, Tampered


async def test_prefills_go_a_few_at_a_time_in_order() -> None:
    cell = RoundsCell(max_prefills=2)
    states = [cell.ask((seed, *range(200)), max_tokens=3) for seed in range(6)]
    await asyncio.sleep(0.001)
    assert len(cell.port.orders(Admission)) == 2
    await cell.finish(*states)
    order = [each.admit.sequence for each in cell.port.orders(Admission)]
    assert order == sorted(order)


async def test_the_youngest_makes_room_and_comes_back() -> None:
    cell = RoundsCell(pages=70)
    states = [cell.ask((seed, 3), max_tokens=100) for seed in range(4)]
    await cell.answered(*states)
    preempted = cell.metrics.value("num_preemptions_total")
    assert cell.metrics.value("prefills_total", reason="preempted") == preempted > 1
    assert states[0].sequence.epoch == 0, "the oldest always goes on"
    assert cell.metrics.value("handovers_total", reason="lost") == 0
    whys = {each.why for each in cell.port.news(Released)}
    assert GoneReason.OUT_OF_PAGES in whys
    assert cell.clean()


async def test_a_prompt_that_finds_no_page_waits_in_front_and_comes_under_another_epoch() -> None:
    cell = RoundsCell(pages=70)
    first = cell.ask((4, 3), max_tokens=150)
    await asyncio.sleep(0.4)
    # The coordinator thinks that there is room; the verifier, whose pool others fill too, knows
    # better.
    pages = cell.port.port.pages
    assert pages.grow(99, 0, 4 * pages.left - 20, 0) is not None
    second = cell.ask(tuple(range(30)), max_tokens=20)
    await asyncio.sleep(0.1)
    assert cell.admission.queued == 1
    pages.free(99, 0)
    await cell.answered(first, second)
    assert second.sequence.epoch > 0
    assert second.handovers == 0
    assert cell.metrics.value("prefills_total", reason="new") == 2 + second.sequence.epoch
    assert cell.clean()


def refused(port: Tampered, told: PassReport, why: RefusalReason, message: str) -> list[Up]:
    """What comes in place of a report: its one sequence is refused."""
    (row,) = told.report.rounds
    port.port.tell([Release(row.sequence, row.epoch, ReleaseMode.DROP)])
    return [Released(row.sequence, row.epoch, 0, GoneReason.NO_PAGES, Refusal(why, message))]


def refuse_once(
    port: Tampered,
    why: RefusalReason,
    message: str,
    whom: Callable[[PassReport], bool] = lambda each: True,
) -> None:
    """The next report of this kind is a refusal."""

    def once(each: PassReport) -> list[Up]:
        if not whom(each):
            return [each]
        port.honest()
        return refused(port, each, why, message)

    port.in_reports(once)


async def test_who_is_turned_away_before_anybody_looked_at_the_prompt_waits_in_front(
    cell: RoundsCell,
) -> None:
    refuse_once(cell.port, RefusalReason.NO_PAGES, "the verifier is draining")
    state = cell.ask()
    await cell.answered(state)
    assert (state.sequence.epoch, state.handovers) == (1, 0)


async def test_an_answer_that_has_begun_waits_for_a_verifier_that_has_no_time_for_it_now() -> None:
    cell = RoundsCell(max_handovers=0)
    state = cell.ask(max_tokens=60)
    await cell.until(lambda: state.answer.length > 9)
    cell.lane.move_all()
    await asyncio.sleep(1.0)
    cell.add_verifier()
    refuse_once(cell.ports[-1], RefusalReason.BUSY, "constraint: no time")
    await cell.until(lambda: state.sequence.epoch == 2)
    began, other = asyncio.get_running_loop().time(), cell.ask(max_tokens=4)
    await cell.finish(other)
    assert asyncio.get_running_loop().time() - began < 0.9 * FORM_RETRY_S, "nobody else waits"
    await cell.answered(state)
    assert (state.sequence.epoch, state.handovers) == (2, 0)


@pytest.mark.parametrize("busy", [0, 1])
async def test_of_several_answers_one_waits_for_a_busy_verifier_once_another_is_shown(
    busy: int,
) -> None:
    cell = RoundsCell(max_handovers=0)
    states = cell.answers(max_tokens=60, choices=2)
    shown: set[int] = set()
    for state in states:
        state.shown = shown
    number = states[busy].sequence.number
    shown.add(1 - busy)
    refuse_once(
        cell.port,
        RefusalReason.BUSY,
        "constraint: no time",
        lambda each: not each.report.number and each.report.rounds[0].sequence == number,
    )
    await cell.finish(*states)
    assert [state.answer.length for state in states] == [60, 60]
    assert states[busy].sequence.epoch == 1


NOT_THESE, NO_RULE = "not these", "unsupported: no such rule"

AGAIN = "begun 3 times, and refused again: not these; the answer stands at offset 0"


@pytest.mark.parametrize(
    ("why", "said", "error", "told"),
    [
        ("BUSY", NOT_THESE, Overloaded, "not these"),
        ("INVALID", NOT_THESE, PeerError, "the verifier refused a prompt: not these"),
        ("INTERNAL", NOT_THESE, PeerError, AGAIN),
        ("UNKNOWN_SEQUENCE", NOT_THESE, Unavailable, AGAIN),
        ("INVALID", "constraint: no such rule", InvalidRequest, "^constraint: no such rule"),
        ("INVALID", f"constraint: {NO_RULE}", Unsupported, "^constraint: no such rule"),
        ("INVALID", "sampling.top_k: none", InvalidRequest, r"^sampling_params\.top_k: none"),
        ("INVALID", f"sampling.n: {NO_RULE}", Unsupported, r"^sampling_params\.n: no such rule"),
    ],
)
async def test_who_is_refused_hears_why_under_the_name_of_the_field(
    why: str, said: str, error: type[DsparkError], told: str
) -> None:
    cell = RoundsCell(max_handovers=2)
    cell.port.in_reports(lambda each: refused(cell.port, each, RefusalReason[why], said))
    state = cell.ask()
    await cell.finish(state)
    with pytest.raises(error, match=f"{told}$") as caught:
        await read(state)
    assert type(caught.value) is error
    assert cell.metrics.value("requests_total", outcome="overloaded") == (why == "BUSY")
    assert cell.metrics.value("requests_total", outcome="slow_reader") == 0
