"""Several answers of one request: taken in together or not at all, ended one by one or by an error together."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from fakes import ToyCell, answer_of, calm

from coordinator.answers.answer import Answer
from coordinator.answers.commit_log import CommitLog, Reason
from coordinator.answers.outlet import Outlet
from coordinator.answers.tally import Tally
from coordinator.lanes.lane import Conduct
from coordinator.lanes.sequence import Sequence, State
from coordinator.lanes.track import Track
from coordinator.queue.admission import Bounds
from coordinator.requests.request import Request
from dspark.errors import InvalidRequest, Overloaded, PeerError
from dspark.rounds.policy import Fixed
from dspark.types import Law, TokenLogprobs

MakeCell = Callable[..., ToyCell]
_numbers = itertools.count(1000)


@pytest.fixture
async def make_cell() -> AsyncIterator[MakeCell]:
    cells: list[ToyCell] = []

    def make(**how: Any) -> ToyCell:
        cells.append(ToyCell(**how))
        return cells[-1]

    yield make
    for cell in cells:
        await cell.close()


def ask(cell: ToyCell, choices: int, name: str = "r", unread: int = 64, max_tokens: int = 8, **law: Any) -> list[Track]:
    request = Request(name, (5, 6), Law(0.0, **law), max_tokens, Fixed(3), choices=choices)
    outlet, tracks = Outlet(unread, choices), []
    for choice in range(choices):
        log = CommitLog(request.prompt)
        its = replace(request, law=replace(request.law, choice=choice))
        answer = Answer(log, max_tokens=max_tokens, index=choice)
        tracks.append(Track(its, Sequence(next(_numbers), log), answer, Tally(cell.clock.time()), outlet))
    cell.admission.submit(*tracks)
    return tracks


async def read(tracks: list[Track]) -> dict[int, list[int]]:
    """Tokens by answer, to the end; raises the error that ended them."""
    got: dict[int, list[int]] = {}
    while (pieces := await tracks[0].outlet.take()) is not None:  # type: ignore[attr-defined]
        for piece, _ in pieces:
            got.setdefault(piece.index, []).extend(piece.tokens)
    return got


async def test_pieces_of_all_answers_come_by_one_way_which_closes_behind_the_last(make_cell: MakeCell) -> None:
    cell = make_cell()
    tracks = ask(cell, 3)
    await cell.finish(*tracks)
    assert await read(tracks) == dict.fromkeys(range(3), answer_of((5, 6), 8))
    assert cell.metrics.value("prompt_tokens_total") == 2, "the prompt counts once"
    assert cell.clean()


async def test_the_queue_takes_all_answers_of_a_request_or_none(make_cell: MakeCell) -> None:
    cell = make_cell(bounds=Bounds(max_running=1, max_queued=3))
    ask(cell, 3, "first")  # one runs, two wait
    assert cell.admission.queued == 2
    with pytest.raises(Overloaded):
        ask(cell, 2, "second")
    assert cell.admission.find("second") is None
    assert cell.admission.queued == 2
    ask(cell, 1, "third")
    with pytest.raises((InvalidRequest, Overloaded)):
        ask(cell, 1, "first")


async def test_an_error_of_one_answer_ends_the_request(make_cell: MakeCell) -> None:
    cell = make_cell()
    tracks = ask(cell, 3, unread=1, max_tokens=40)  # nobody reads
    await cell.finish(*tracks)
    with pytest.raises(Overloaded):
        await read(tracks)
    assert cell.admission.running == cell.admission.queued == 0
    assert cell.admission.find("r") is None
    assert cell.clean()


async def test_an_abort_ends_what_has_not_ended(make_cell: MakeCell) -> None:
    cell = make_cell()
    tracks = ask(cell, 3, max_tokens=90)
    await calm(30)
    assert cell.admission.abort("r")
    assert not cell.admission.abort("r")
    assert [track.end.reason for track in tracks if track.end] == [Reason.ABORT] * 3
    await calm()
    assert cell.clean()


async def test_a_verifier_that_keeps_log_probabilities_to_itself_fails_the_request(make_cell: MakeCell) -> None:
    cell = make_cell()
    tracks, plain = ask(cell, 2, "asks", logprobs=0), ask(cell, 1, "plain")
    await cell.finish(*tracks, *plain)
    with pytest.raises(PeerError, match="log-probabilit"):
        await read(tracks)
    assert plain[0].answer.log.answered == 8, "its neighbour does not notice"


@pytest.mark.parametrize("more", [-1, 1])
async def test_a_verdict_whose_log_probabilities_are_not_its_tokens_fails_the_request(
    make_cell: MakeCell, more: int
) -> None:
    cell = make_cell()
    one = TokenLogprobs(-1.0)
    cell.verifier.tampers_first = lambda prefilled: replace(prefilled, logprobs=(one,))
    cell.verifier.tampers = lambda verdict: verdict._replace(logprobs=(one,) * (verdict.accepted + 1 + more))
    tracks = ask(cell, 1, "asks", logprobs=0)
    await cell.finish(*tracks)
    with pytest.raises(PeerError, match="log-probabilit"):
        await read(tracks)
    assert tracks[0].answer.log.answered == 1


def test_numbers_of_several_answers_add_up() -> None:
    one, two = Tally(1.0, placed=2.0, first=4.0, ended=9.0), Tally(1.0, placed=1.5, first=5.0, ended=8.0)
    one.drafted, two.drafted = 7, 14
    one.round(verified=3, accepted=2, committed=3)
    two.round(verified=3, accepted=0, committed=1)
    two.round(verified=5, accepted=5, committed=6)
    both = Tally.together([one, two])
    assert (both.rounds, both.drafted, both.verified, both.accepted) == (3, 21, 11, 7)
    assert both.mean_acceptance_length == pytest.approx(10 / 3)
    assert (both.queue_s(), both.first_token_s(), both.total_s()) == (0.5, 3.0, 8.0)
    assert (one.rounds, two.rounds) == (1, 2), "the parts are left alone"
    assert Tally.together([one]) is one


async def test_the_other_answers_come_when_the_prompt_of_the_first_is_in(make_cell: MakeCell) -> None:
    cell = make_cell()
    cell.verifier.holding.add("prefill")
    tracks = ask(cell, 4)
    await calm()
    assert cell.verifier.prefills == 1, "one prompt, and it is being run"
    cell.verifier.let_go("prefill")
    await cell.finish(*tracks)
    assert cell.verifier.prefills == 4
    assert await read(tracks) == dict.fromkeys(range(4), answer_of((5, 6), 8))


async def test_answers_do_not_wait_for_a_first_that_left(make_cell: MakeCell) -> None:
    cell = make_cell()
    cell.verifier.holding.add("prefill")
    tracks = ask(cell, 3)
    await calm()
    cell.admission.ended(tracks[0], None)
    cell.verifier.let_go("prefill")
    await cell.finish(*tracks[1:])
    assert sorted(await read(tracks)) == [1, 2]
    assert cell.clean()


async def test_answers_go_on_when_the_first_is_turned_away_and_comes_back(make_cell: MakeCell) -> None:
    cell = make_cell()
    cell.verifier.holding.add("prefill")
    cell.verifier.no_pages = True
    tracks = ask(cell, 3)
    await calm()
    assert len(cell.verifier.held) == 1, "the first is asked for, the others wait for it"
    assert {track.sequence.state for track in tracks} == {State.PREFILLING}
    cell.verifier.no_pages = False
    cell.verifier.let_go("prefill")
    await cell.finish(*tracks)
    assert cell.metrics.value("refusals_total", reason="no_pages") == 1
    assert await read(tracks) == dict.fromkeys(range(3), answer_of((5, 6), 8))
    assert cell.clean()


async def test_answers_go_on_when_the_first_is_cancelled_before_its_prompt_is_sent(make_cell: MakeCell) -> None:
    cell = make_cell(waits=Conduct(prefills=1))
    cell.verifier.holding.add("prefill")
    before = ask(cell, 1, "before")
    tracks = ask(cell, 3)
    await calm()
    assert cell.verifier.prefills == 1, "another request's prompt is being run, and the first stands in line"
    cell.admission.ended(tracks[0], None)
    cell.verifier.let_go("prefill")
    await cell.finish(*before, *tracks[1:])
    assert sorted(await read(tracks)) == [1, 2]
    assert cell.verifier.prefills == 3, "nobody ran a prompt for the one that left"
    assert cell.clean()


async def test_requests_with_the_same_prompt_do_not_wait_for_each_other(make_cell: MakeCell) -> None:
    cell = make_cell()
    cell.verifier.holding.add("prefill")
    tracks = [*ask(cell, 1, "one"), *ask(cell, 1, "two")]
    await calm()
    assert cell.verifier.prefills == 2
    cell.verifier.let_go("prefill")
    await cell.finish(*tracks)
