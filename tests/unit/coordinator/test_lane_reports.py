"""What a lane makes of what its verifier reports: commits, lies and bugs, in simulated time."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from dspark.errors import PeerError
from dspark.rounds.control import Admission, PassReport
from dspark.rounds.events import Acknowledged, RoundReport
from tests.fakes import answer_of, read
from tests.rounds_cell import RoundsCell, ToyPair, with_rows

POLICIES = ("adaptive", "fixed:1", "fixed:3", "threshold:0.5", "off")


async def test_several_policies_share_the_rounds_of_a_lane(cell: RoundsCell) -> None:
    states = [
        cell.ask((seed, 3), max_tokens=60, policy=policy) for seed, policy in enumerate(POLICIES)
    ]
    await cell.answered(*states)
    one, three, off = states[1].stats, states[2].stats, states[-1].stats
    assert max(i for i, count in enumerate(one.verified_histogram) if count) == 1
    assert max(i for i, count in enumerate(three.verified_histogram) if count) == 3
    assert off.drafted == 0
    assert off.rounds == 59 > 2 * three.rounds
    assert max(report.tokens for report in cell.port.news(PassReport)) > len(POLICIES)


@pytest.mark.parametrize("max_tokens", range(1, 12))
async def test_histograms_agree_with_the_counters_for_every_length(
    cell: RoundsCell, max_tokens: int
) -> None:
    state = cell.ask(max_tokens=max_tokens)
    await cell.finish(state)
    tokens, stats = await read(state), state.stats
    assert len(tokens) == max_tokens
    assert sum(stats.acceptance_histogram) == sum(stats.verified_histogram) == stats.rounds
    assert stats.accepted <= stats.verified <= stats.drafted
    assert stats.committed_by_rounds == max_tokens - 1
    assert stats.accepted == cell.metrics.value("spec_decode_num_accepted_tokens_total")
    wasted = sum(
        cell.metrics.value("draft_wasted_tokens_total", reason=why)
        for why in ("not_verified", "rejected", "cut")
    )
    assert stats.drafted == stats.accepted + wasted
    assert cell.metrics.value("generation_tokens_total") == max_tokens


@pytest.mark.parametrize("window", [0, 1, 2])
async def test_an_end_that_only_the_text_shows_wastes_at_most_the_window(window: int) -> None:
    cell = RoundsCell(window=window)
    state = cell.ask(max_tokens=400, policy="off")
    await cell.until(lambda: state.answer.committed_len >= 30, each_s=0.0005)
    known = state.answer.committed_len
    cell.admission.finish(state)
    await asyncio.sleep(0.1)
    assert cell.clean()
    reports = cell.port.news(PassReport)
    assert {len(each.report.rounds) for each in reports} == {1}
    beyond = len(reports) - (known - 2)
    assert 0 <= beyond <= window + 1, "the round that ran, and as many as a verifier may run ahead"


async def test_r7_a_commit_is_written_then_acknowledged_then_shown(cell: RoundsCell) -> None:
    happened: list[str] = []
    written: list[int] = []

    def write() -> None:
        happened.append("written")
        written.append(cell.lane.states[0].answer.committed_len if cell.lane.states else 0)

    cell.lane._write = write
    tell_port = cell.port.port.tell

    def told(orders: Sequence[Any]) -> None:
        told = ["acknowledged" for each in orders if isinstance(each, Acknowledged)]
        happened.extend(told)
        if told and cell.lane.states:
            assert written[-1] == cell.lane.states[0].answer.committed_len, "all of it is written"
        tell_port(orders)

    cell.port.port.tell = told
    state = cell.ask(max_tokens=30)
    pieces = 0
    while (taken := await state.sink.take()) is not None:
        pieces += len(taken)
        happened.append("shown")
        last = [each for each in happened if each != "shown"][-1]
        assert last == "acknowledged" or state.end is not None
    assert pieces > 5
    order = [each for each in happened if each != "shown"]
    assert all(
        before == "written" for before, now in itertools.pairwise(order) if now == "acknowledged"
    )


@pytest.mark.parametrize("bug", ["news", "settle", "look_at"])
async def test_r7_a_bug_costs_a_lane_and_no_sequence_and_what_was_committed_before_is_written(
    cell: RoundsCell, bug: str
) -> None:
    state, lane, port = cell.ask(max_tokens=90), cell.lane, cell.port
    written: list[int] = []
    lane._write = lambda: written.append(state.answer.committed_len)
    await cell.until(lambda: state.answer.committed_len > 10, each_s=0.0005)

    if bug == "news":
        port.tampers = lambda news: [*news, object()]
    else:
        setattr(lane._assignment, bug, Mock(side_effect=RuntimeError("planted")))
    if bug == "look_at":
        port.tampers = lambda news: ()
    before = state.answer.committed_len
    await cell.until(lambda: bool(port.closed_because))
    assert port.closed_because == "its lane failed"
    assert bug != "news" or written[-1] == state.answer.committed_len > before
    cell.add_verifier()
    await cell.answered(state)


async def test_r9_an_epoch_is_written_before_a_verifier_hears_of_it_and_given_once() -> None:
    noted: list[int] = []
    written: list[int] = []
    cell = RoundsCell(write=lambda: written.extend(noted))
    tell_port = cell.port.port.tell

    def told(orders: Sequence[Any]) -> None:
        for each in orders:
            if isinstance(each, Admission):
                assert each.admit.epoch in written
        tell_port(orders)

    cell.port.port.tell = told
    state = cell.ask(max_tokens=60, note_epoch=lambda epoch, target: noted.append(epoch))
    await asyncio.sleep(0.00015)
    cell.lose_verifier()  # nothing was committed under the first epoch
    assert state.answer.committed_len == 2
    cell.add_verifier()
    await asyncio.sleep(0.1)
    cell.lane.move_all()
    cell.add_verifier()
    await cell.answered(state)
    assert noted == [0, 1, 2]


@pytest.mark.parametrize("fault", ["gap", "repeat", "length", "number"])
async def test_r7_a_report_that_is_not_the_next_one_orphans_its_sequence(fault: str) -> None:
    cell, numbers = RoundsCell(), itertools.count(1)

    def tamper(each: PassReport) -> list[PassReport]:
        if not each.report.number or next(numbers) != 3:
            return [each]
        (row,) = each.report.rounds
        wrong = row._replace(committed_before=row.committed_before + 1)
        if fault == "number":
            wrong = row._replace(round=row.round + 1)
        return {"gap": [], "repeat": [each, each]}.get(fault, [with_rows(each, [wrong])])

    cell.port.in_reports(tamper)
    state = cell.ask(max_tokens=60)
    await cell.answered(state)
    assert (state.handovers, state.sequence.epoch) == (1, 1)
    assert cell.metrics.value("dropped_total", kind="verdict", reason="out_of_order") == 1
    assert cell.clean()


LIES = {
    "a token out of the vocabulary": lambda row: row._replace(tokens=(*row.tokens[:-1], 97)),
    "a negative token": lambda row: row._replace(tokens=(*row.tokens[:-1], -1)),
    "more accepted than verified": lambda row: row._replace(accepted=row.verified + 1),
    "more verified than drafted": lambda row: row._replace(verified=len(row.confidence) + 1),
    "more tokens than accepted": lambda row: row._replace(tokens=(*row.tokens, 3)),
    "fewer tokens than accepted": lambda row: row._replace(tokens=row.tokens[:-1]),
    "nothing": lambda row: row._replace(tokens=(), accepted=0, verified=0),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_verifier_that_says_what_cannot_be_ends_that_request_and_no_other(lie: str) -> None:
    cell = RoundsCell(pair=ToyPair(wrong_every=1000))
    victim, other = cell.ask(max_tokens=60), cell.ask((8, 9), max_tokens=40)

    def told(row: RoundReport) -> RoundReport:
        lies = row.sequence == victim.sequence.number and row.verified and row.round > 1
        return LIES[lie](row) if lies else row

    cell.port.in_rows(told)
    await cell.finish(victim, other)
    assert await read(other) == answer_of((8, 9), 40)
    with pytest.raises(PeerError, match="the verifier sent"):
        await read(victim)
    shown = list(victim.answer.ids()[victim.answer.prompt_len :])
    assert cell.clean()
    assert all(0 <= token < 97 for token in shown)


async def test_reasons_of_a_hostile_verifier_name_no_new_time_series() -> None:
    cell = RoundsCell(drafters=0)
    cell.port.in_rows(lambda row: row._replace(why_empty=f"x{row.round}"))
    state = cell.ask(max_tokens=20, policy="fixed:1")
    await cell.finish(state)
    assert cell.metrics.value("empty_blocks_total", reason="unspecified") > 5


async def test_a_bug_in_one_commit_fails_that_request_alone(cell: RoundsCell) -> None:
    broken, fine = cell.ask(max_tokens=20), cell.ask((8, 9), max_tokens=20)
    await cell.until(lambda: broken.answer.length > 2)

    broken.answer.take = Mock(side_effect=RuntimeError("a bug"))
    await cell.finish(broken, fine)
    assert await read(fine) == answer_of((8, 9), 20)
    assert fine.handovers == 0
    with pytest.raises(PeerError):
        await read(broken)
    assert cell.clean()
