"""Several answers of one request: taken in together or not at all, ended one by one or by an error
together."""

import asyncio
from typing import Any

import numpy as np
import pytest

from coordinator.answers.answer import Reason, RequestStats, Round
from coordinator.lanes.request_state import LifeState, RequestState
from dspark.errors import InvalidRequest, Overloaded, PeerError, Unavailable
from dspark.rounds.control import Admission, PassReport, PrefillStats, Up
from dspark.types import SamplingParams, ScoredPrompt, ScoredToken
from tests.fakes import answer_of
from tests.rounds_cell import RoundsCell


def ask(
    cell: RoundsCell, choices: int, name: str = "r", max_tokens: int = 8, **params: Any
) -> list[RequestState]:
    asked: Any = {"max_tokens": max_tokens, "policy": "fixed:3", "name": name, "choices": choices}
    return cell.answers(params=SamplingParams(0.0, **params), **asked)


def prompts(cell: RoundsCell) -> int:
    """Run or asked for so far."""
    return len(cell.port.orders(Admission))


async def read(states: list[RequestState]) -> dict[int, list[int]]:
    """Tokens by answer, to the end; raises the error that ended them."""
    got: dict[int, list[int]] = {}
    while (pieces := await states[0].sink.take()) is not None:
        for piece, _ in pieces:
            got.setdefault(piece.index, []).extend(piece.tokens)
    return got


async def test_the_queue_takes_all_answers_of_a_request_or_none() -> None:
    cell = RoundsCell(max_running=1, max_queued=3)
    ask(cell, 3, "first")  # one runs, two wait
    assert cell.admission.queued == 2
    with pytest.raises(Overloaded):
        ask(cell, 2, "second")
    assert cell.admission.find("second") is None
    assert cell.admission.queued == 2
    ask(cell, 1, "third")
    with pytest.raises((InvalidRequest, Overloaded)):
        ask(cell, 1, "first")


async def test_more_answers_than_may_run_are_taken_in_where_nothing_may_wait_but_for_them() -> None:
    cell = RoundsCell(max_running=2, max_queued=0)
    states = ask(cell, 3, "first")
    with pytest.raises(Overloaded):
        ask(cell, 1, "second")
    await cell.finish(*states)
    assert [state.answer.length for state in states] == [8] * 3
    await cell.finish(*ask(cell, 1, "second"), *ask(cell, 1, "third"))


async def test_an_error_of_one_answer_ends_the_request() -> None:
    cell = RoundsCell(sink=1)
    states = ask(cell, 3, max_tokens=40)  # nobody reads
    await cell.finish(*states)
    with pytest.raises(Overloaded):
        await read(states)
    assert cell.admission.running == cell.admission.queued == 0
    assert cell.admission.find("r") is None
    assert cell.metrics.value("slow_readers_cut_total") == 1
    assert cell.clean()


async def test_an_abort_ends_what_has_not_ended(cell: RoundsCell) -> None:
    states = ask(cell, 3, max_tokens=90)
    await cell.until(lambda: states[0].answer.length > 9)
    assert cell.admission.abort("r")
    assert not cell.admission.abort("r")
    assert [state.end.reason for state in states if state.end] == [Reason.ABORT] * 3
    await asyncio.sleep(0.1)
    assert cell.clean()


async def test_a_coordinator_that_stops_ends_every_answer_once_and_says_where(
    cell: RoundsCell,
) -> None:
    states = ask(cell, 3, max_tokens=90)
    await cell.until(lambda: states[0].answer.length > 9)
    stands = states[0].answer.length
    cell.admission.cut_all()
    with pytest.raises(Unavailable, match=f"the coordinator stops; .* at offset {stands}$"):
        await read(states)
    await asyncio.sleep(0.1)
    assert cell.clean()


@pytest.mark.parametrize(("first", "later", "length"), [(-1, 0, 0), (0, -1, 1), (0, 1, 1)])
async def test_a_verifier_whose_log_probabilities_are_not_its_tokens_fails_the_request(
    first: int, later: int, length: int
) -> None:
    cell, one = RoundsCell(), ScoredToken(-1.0)

    def tampered(each: PassReport) -> list[Up]:
        more = later if each.report.number else first
        told = [(one,) * (len(row.tokens) + more) for row in each.report.rounds]
        return [each._replace(logprobs=told)]

    cell.port.in_reports(tampered)
    states, plain = ask(cell, 2, "asks", logprobs=0), ask(cell, 1, "plain")
    await cell.finish(*states, *plain)
    with pytest.raises(PeerError, match="log-probabilit"):
        await read(states)
    assert states[0].answer.length == length
    assert plain[0].answer.length == 8, "its neighbour does not notice"


@pytest.mark.parametrize(
    "scored", [ScoredPrompt.joined((), 1), ScoredPrompt(*[np.ones(1)] * 2, *[np.ones((1, 2))] * 2)]
)
async def test_a_prompt_that_is_scored_otherwise_than_it_was_asked_for_fails_the_request(
    cell: RoundsCell, scored: ScoredPrompt
) -> None:
    began = PrefillStats(prompt_logprobs=scored)
    cell.port.in_reports(lambda each: [each._replace(started=each.started and began)])
    states = cell.answers(policy="fixed:3", prompt_logprobs=1)
    other = ask(cell, 1, "plain")
    await cell.finish(*states, *other)
    with pytest.raises(PeerError, match="of the prompt"):
        await read(states)
    assert other[0].answer.length == 8, "whoever asked for none is told of none"


def test_numbers_of_several_answers_add_up() -> None:
    one = RequestStats(1.0, placed=2.0, first=4.0, ended=9.0)
    two = RequestStats(1.0, placed=1.5, first=5.0, ended=8.0)
    assert one.round(Round(7, 3, 2), 3) == 2
    assert two.round(Round(7, 3, 0), 1) == 0
    assert two.round(Round(7, 5, 6), 5) == 5, "what had no room is not counted"
    both = RequestStats.together([one, two])
    assert (both.rounds, both.drafted, both.verified, both.accepted) == (3, 21, 11, 7)
    assert both.mean_acceptance_length == pytest.approx(9 / 3)
    assert (both.queue_s(), both.first_token_s(), both.total_s()) == (0.5, 3.0, 8.0)
    assert (one.rounds, two.rounds) == (1, 2), "the parts are left alone"
    assert RequestStats.together([one]) == one


async def test_the_other_answers_come_when_the_prompt_of_the_first_is_in(cell: RoundsCell) -> None:
    cell.port.hold()
    states = ask(cell, 4)
    await asyncio.sleep(0.1)
    assert prompts(cell) == 1, "one prompt, and it is being run"
    cell.port.let_go()
    await cell.finish(*states)
    assert prompts(cell) == 4
    assert await read(states) == dict.fromkeys(range(4), answer_of((5, 6), 8))
    assert cell.metrics.value("prompt_tokens_total") == 2, "the prompt counts once"
    assert cell.clean()


@pytest.mark.parametrize("in_line", [True, False])
async def test_answers_do_not_wait_for_a_first_that_left(in_line: bool) -> None:
    cell = RoundsCell(max_prefills=1)
    cell.port.hold()
    before = ask(cell, 1, "before") if in_line else []
    states = ask(cell, 3)
    await asyncio.sleep(0.1)
    assert prompts(cell) == 1, "the first one's, or that of who stands before it"
    cell.admission.ended(states[0], None)
    cell.port.let_go()
    await cell.finish(*before, *states[1:])
    assert sorted(await read(states)) == [1, 2]
    assert prompts(cell) == 3, "nobody ran a prompt for one that left the line"
    assert cell.clean()


async def test_answers_go_on_when_the_first_is_turned_away_and_comes_back() -> None:
    cell = RoundsCell(pages=60)
    pages = cell.port.port.pages
    assert pages.grow(99, 0, 4 * pages.left, 0) is not None, "another coordinator's"
    states = ask(cell, 3)
    await asyncio.sleep(0.1)
    assert prompts(cell) >= 1
    assert LifeState.WAITING in {state.sequence.state for state in states}
    pages.free(99, 0)
    await cell.finish(*states)
    assert sum(state.sequence.epoch for state in states) >= 1
    assert await read(states) == dict.fromkeys(range(3), answer_of((5, 6), 8))
    assert cell.clean()


async def test_requests_with_the_same_prompt_do_not_wait_for_each_other(cell: RoundsCell) -> None:
    cell.port.hold()
    states = [*ask(cell, 1, "one"), *ask(cell, 1, "two")]
    await asyncio.sleep(0.1)
    assert prompts(cell) == 2
    cell.port.let_go()
    await cell.finish(*states)
