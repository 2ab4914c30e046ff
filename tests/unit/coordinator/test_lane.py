"""The round loop against arithmetic workers: no ports, no sleeps, a clock turned by hand."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
import pytest_asyncio
from fakes import VOCAB, FakeVerifier, ToyCell, answer_of, calm, read

from coordinator.answers.commit_log import End, Reason
from coordinator.lanes.drafting import DraftWaits
from coordinator.lanes.lane import Conduct
from coordinator.lanes.ports import Declined
from coordinator.queue.admission import Bounds
from coordinator.scheduling.cost_curve import CostCurve
from coordinator.scheduling.pipelining import Mode
from dspark.errors import Cancelled, Overloaded, PeerError, Unavailable
from dspark.types import Cursor, RefusalReason, Verdict

MakeCell = Callable[..., ToyCell]


@pytest_asyncio.fixture
async def make_cell() -> AsyncIterator[MakeCell]:
    cells: list[ToyCell] = []

    def make(**settings: object) -> ToyCell:
        cells.append(ToyCell(**settings))
        return cells[-1]

    yield make
    for cell in cells:
        await cell.close()


@pytest.mark.parametrize("policy", ["greedy", "async", "fixed:1", "fixed:3", "threshold:0.5", "off"])
async def test_the_answer_is_what_plain_decoding_gives_under_every_policy(make_cell: MakeCell, policy: str) -> None:
    cell = make_cell()
    track = cell.ask(max_tokens=23, policy=policy)
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 23)
    assert track.end == End(Reason.LENGTH)
    await calm()
    assert cell.clean()


async def test_speculation_takes_fewer_rounds_than_tokens(make_cell: MakeCell) -> None:
    cell = make_cell()
    plain, fast = cell.ask(max_tokens=40, policy="off"), cell.ask(max_tokens=40)
    await cell.finish(plain, fast)
    assert plain.tally.rounds == 39
    assert fast.tally.rounds < 20


async def test_policy_off_never_speaks_to_a_drafter(make_cell: MakeCell) -> None:
    cell = make_cell()
    track = cell.ask(policy="off")
    await cell.finish(track)
    assert not [line for line in cell.talk.lines if line.startswith("draft/")]
    assert not [line for line in cell.talk.lines if "rows->" in line or " keep" in line]


async def test_a_round_takes_at_most_two_control_round_trips(make_cell: MakeCell) -> None:
    cell = make_cell(drafters=2)
    tracks = [cell.ask((seed, 7), max_tokens=30) for seed in range(6)]
    await cell.finish(*tracks)
    trips = sum(cell.metrics.value("control_round_trips_total", kind=kind) for kind in ("draft", "verify"))
    assert trips <= 2 * cell.metrics.value("cohorts_total")
    assert {track.request.id for track in tracks} == {f"r{n}" for n in range(1, 7)}


async def test_sequences_join_and_leave_between_rounds(make_cell: MakeCell) -> None:
    cell = make_cell()
    cell.verifier.holding.add("verify")
    first = cell.ask((5, 6), max_tokens=30)
    await calm()
    second = cell.ask((8, 9), max_tokens=3)  # arrives in the middle of a round
    await calm()
    cell.verifier.let_go("verify")
    await cell.finish(first, second)
    assert await read(first) == answer_of((5, 6), 30)
    assert await read(second) == answer_of((8, 9), 3)
    cohorts = [line for line in cell.talk.lines if "<- verify" in line]
    assert ["s2" in cohort for cohort in cohorts[:3]] == [False, True, False]


async def test_rounds_of_others_go_on_while_a_long_prompt_prefills(make_cell: MakeCell) -> None:
    cell = make_cell()
    quick = cell.ask((5, 6), max_tokens=4)
    await calm(4)
    cell.verifier.holding.add("prefill")
    slow = cell.ask(tuple(range(60)), max_tokens=4)
    await cell.finish(quick)
    assert not slow.sequence.finished
    cell.verifier.let_go("prefill")
    await cell.finish(slow)
    assert await read(slow) == answer_of(tuple(range(60)), 4)


async def test_prefills_go_a_few_at_a_time_in_order(make_cell: MakeCell) -> None:
    cell = make_cell(waits=Conduct(prefills=2))
    cell.verifier.holding.add("prefill")
    tracks = [cell.ask((seed, 7), max_tokens=3) for seed in range(5)]
    await calm()
    assert cell.verifier.prefills == 2
    cell.admission.ended(tracks[2], Cancelled("gone while in line"))
    cell.verifier.let_go("prefill")
    await cell.finish(*tracks)
    assert cell.verifier.prefills == 4
    assert [await read(track) for track in tracks[3:]] == [answer_of((seed, 7), 3) for seed in (3, 4)]


async def test_a_lost_drafter_only_slows_the_answer(make_cell: MakeCell) -> None:
    cell = make_cell()
    cell.drafters[0].holding.add("draft")
    track = cell.ask(max_tokens=20)
    await calm()
    cell.lose_drafter(cell.drafters[0])  # with a draft in flight
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 20)
    assert track.tally.rounds == 19
    assert cell.metrics.value("empty_blocks_total", reason="drafter_lost") == 1
    assert cell.metrics.value("empty_blocks_total", reason="no_drafter") == 18


async def test_a_drafter_that_comes_back_is_filled_without_a_second_prefill(make_cell: MakeCell) -> None:
    cell = make_cell()
    cell.verifier.holding.add("verify")
    track = cell.ask(max_tokens=60)
    await calm()
    cell.lose_drafter(cell.drafters[0])
    await cell.clock.advance(1.0)
    back = cell.new_drafter(incarnation=99)
    cell.verifier.let_go("verify")
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 60)
    assert cell.verifier.prefills == 1
    assert cell.metrics.value("resends_total", reason="attached") == 1
    assert cell.metrics.value("spec_decode_num_accepted_tokens_total") > 20
    assert not back.rows


async def test_a_late_draft_is_dropped_and_counted(make_cell: MakeCell) -> None:
    cell = make_cell(waits=Conduct(draft=DraftWaits(deadline_s=0.1, patience_s=9.0)))
    drafter = cell.drafters[0]
    drafter.holding.add("draft")
    track = cell.ask(max_tokens=5)
    await calm()
    assert track.tally.rounds == 0
    await cell.clock.advance(0.2)  # the deadline passes; the sequence finishes by plain decoding
    assert await read(track) == answer_of((5, 6), 5)
    drafter.let_go("draft")
    await calm()
    assert cell.metrics.value("empty_blocks_total", reason="late") == 1
    assert cell.metrics.value("empty_blocks_total", reason="drafter_late") == 2  # and the last token needs no draft
    assert cell.metrics.value("dropped_total", kind="block", reason="late") == 1


async def test_a_drafter_known_to_be_slow_gets_a_longer_deadline(make_cell: MakeCell) -> None:
    cell = make_cell(waits=Conduct(draft=DraftWaits(deadline_s=0.1, patience_s=9.0)))
    drafter = cell.drafters[0]
    drafter.step_s = 0.2
    drafter.holding.add("draft")
    track = cell.ask(max_tokens=40)
    await calm()
    cell.verifier.holding.add("verify")
    await cell.clock.advance(0.15)  # late; it answers while the round goes on, and says how long its pass took
    drafter.let_go("draft")
    await calm()
    drafter.holding.add("draft")
    cell.verifier.let_go("verify")
    await calm()
    await cell.clock.advance(0.5)  # in time now
    drafter.let_go("draft")
    await cell.finish(track)
    assert cell.metrics.value("empty_blocks_total", reason="late") == 1
    assert await read(track) == answer_of((5, 6), 40)


async def test_a_drafter_that_stays_silent_is_let_go(make_cell: MakeCell) -> None:
    cell = make_cell(waits=Conduct(draft=DraftWaits(deadline_s=0.1, patience_s=3.0)))
    cell.drafters[0].holding.add("draft")
    cell.ask(max_tokens=5)
    await calm()
    await cell.clock.advance(3.5)
    assert cell.drafters[0].closed_because == "silent for more than 3 s"


async def test_one_draft_attempt_per_anchor(make_cell: MakeCell) -> None:
    cell = make_cell()
    cell.verifier.decline = Declined(Cursor(0, 0, 0, 0), RefusalReason.INVALID, "q_probs: not a number")
    track = cell.ask(max_tokens=10)
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 10)
    drafts = [line.split("anchor=")[0] for line in cell.talk.lines if "<- draft" in line]
    assert len(drafts) == len(set(drafts))
    assert cell.metrics.value("empty_blocks_total", reason="drafted_before") == 1
    assert cell.metrics.value("refusals_total", reason="invalid") == 1


async def test_missing_rows_are_asked_for_again_after_three_rounds(make_cell: MakeCell) -> None:
    cell = make_cell()
    cell.verifier.holding.add("verify")
    track = cell.ask(max_tokens=60)
    await calm()
    del cell.drafters[0].rows[track.sequence.number][1]  # a row is lost on its way
    await cell.clock.advance(1.0)
    cell.verifier.let_go("verify")
    await cell.finish(track)
    assert cell.metrics.value("empty_blocks_total", reason="features_missing") == 3
    assert cell.metrics.value("resends_total", reason="features_missing") == 1
    assert [line for line in cell.talk.lines if "resend" in line and "from=1" in line]
    assert cell.metrics.value("spec_decode_num_accepted_tokens_total") > 20


async def test_rows_that_come_late_but_come_are_not_asked_for_again(make_cell: MakeCell) -> None:
    cell = make_cell()
    drafter = cell.drafters[0]
    ingest, late = drafter.ingest, []

    def one_round_late(sequence: int, epoch: int, start: int, tokens: list[int]) -> None:
        late.append((sequence, epoch, start, tokens))
        if len(late) > 1:
            ingest(*late[-2])

    drafter.ingest = one_round_late
    track = cell.ask(max_tokens=20)
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 20)
    assert cell.metrics.value("empty_blocks_total", reason="features_missing") > 10
    assert not [line for line in cell.talk.lines if "resend" in line]


async def test_a_cancelled_request_is_freed_in_both_pools_at_once(make_cell: MakeCell) -> None:
    cell = make_cell()
    cell.verifier.holding.add("verify")
    track = cell.ask(max_tokens=50)
    await calm()
    assert not cell.clean()
    cell.admission.ended(track, Cancelled("the client went away"))
    assert cell.clean()
    cell.verifier.let_go("verify")
    await calm()
    assert cell.metrics.value("dropped_total", kind="verdict", reason="stale") == 1
    assert cell.metrics.value("requests_total", outcome="cancelled") == 1
    with pytest.raises(Cancelled):
        await read(track)


@pytest.mark.parametrize("stage", ["open", "prefill", "draft"])
async def test_cancelling_at_any_stage_leaves_nothing_behind(make_cell: MakeCell, stage: str) -> None:
    cell = make_cell()
    cell.verifier.holding.add(stage)
    cell.drafters[0].holding.add(stage)
    track = cell.ask(max_tokens=50)
    await calm()
    cell.admission.ended(track, Cancelled("the client went away"))
    cell.verifier.let_go(stage)
    cell.drafters[0].let_go(stage)
    await calm()
    assert cell.clean()
    assert cell.admission.running == cell.admission.queued == 0


async def test_a_stop_token_inside_an_accepted_prefix_ends_the_answer_there(make_cell: MakeCell) -> None:
    whole = answer_of((5, 6), 12)
    cell = make_cell()
    track = cell.ask(max_tokens=12, stop_ids=frozenset({whole[3]}))
    await cell.finish(track)
    assert await read(track) == whole[: whole.index(whole[3]) + 1]
    assert track.end == End(Reason.STOP, token_id=whole[3])


@pytest.mark.parametrize("max_tokens", range(1, 12))
async def test_histograms_agree_with_the_counters_for_every_length(make_cell: MakeCell, max_tokens: int) -> None:
    cell = make_cell()
    track = cell.ask(max_tokens=max_tokens)
    await cell.finish(track)
    tokens, tally = await read(track), track.tally
    assert len(tokens) == max_tokens
    assert sum(tally.acceptance_histogram) == sum(tally.verified_histogram) == tally.rounds
    assert tally.accepted <= tally.verified <= tally.drafted
    assert tally.committed_by_rounds == max_tokens - 1
    assert tally.accepted == cell.metrics.value("spec_decode_num_accepted_tokens_total")
    wasted = sum(
        cell.metrics.value("draft_wasted_tokens_total", reason=why) for why in ("not_verified", "rejected", "cut")
    )
    assert tally.drafted == tally.accepted + wasted


async def test_slots_the_verifier_had_no_pages_for_are_counted_as_not_verified(make_cell: MakeCell) -> None:
    cell = make_cell()
    cell.verifier.tampers = lambda verdict: verdict._replace(judged=verdict.accepted)
    track = cell.ask(max_tokens=30)
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 30)
    assert track.tally.verified == track.tally.accepted < track.tally.drafted
    assert cell.metrics.value("draft_wasted_tokens_total", reason="rejected") == 0
    assert cell.metrics.value("draft_wasted_tokens_total", reason="not_verified") > 0


async def test_no_draft_reaches_past_the_answer_s_end(make_cell: MakeCell) -> None:
    cell = make_cell()
    cell.drafters[0].wrong_every = 1000
    track = cell.ask(max_tokens=4)
    await cell.finish(track)
    assert track.tally.rounds == 1
    assert [line for line in cell.talk.lines if "slots=2" in line]


async def test_a_verifier_that_dies_is_replaced_and_nothing_said_changes(make_cell: MakeCell) -> None:
    cell = make_cell()
    cell.verifier.holding.add("verify")
    tracks = [cell.ask((seed, 3), max_tokens=20) for seed in range(3)]
    await calm()
    cell.lose_verifier()
    assert cell.admission.queued == 3
    cell.verifier = FakeVerifier(cell.talk, cell.drafters, "verify/1", incarnation=22)
    cell.lane = cell.add_lane(cell.verifier)
    await cell.finish(*tracks)
    assert [await read(track) for track in tracks] == [answer_of((seed, 3), 20) for seed in range(3)]
    assert {track.sequence.epoch for track in tracks} == {1}
    assert cell.metrics.value("prefills_total", reason="handover") == 3
    await calm()
    assert cell.clean()


async def test_without_another_verifier_the_client_hears_where_the_answer_stands(make_cell: MakeCell) -> None:
    cell = make_cell(bounds=Bounds(verifier_wait_s=20.0))
    cell.verifier.holding.add("verify")
    track = cell.ask(max_tokens=9)
    await calm()
    cell.lose_verifier()
    await cell.clock.advance(19.0)
    assert not track.sequence.finished
    await cell.clock.advance(2.0)
    with pytest.raises(Unavailable, match="within 20 s; the answer stands at offset 1"):
        await read(track)
    (told,) = cell.admission.endings.of(track.request.id)
    assert (told.verifier, told.drafter) == ("verify/0", "draft/0"), "those that had it, not nobody"


async def test_a_verifier_that_runs_its_first_requests_is_waited_for(make_cell: MakeCell) -> None:
    cell = make_cell(bounds=Bounds(verifier_wait_s=20.0, warm_s=60.0))
    cell.verifier.holding.add("verify")
    track = cell.ask(max_tokens=9)
    await calm()
    cell.admission.verifier_warms = lambda: True
    cell.lose_verifier()
    await cell.clock.advance(79.0)
    assert not track.sequence.finished
    cell.verifier = FakeVerifier(cell.talk, cell.drafters, "verify/1", incarnation=22)
    cell.lane = cell.add_lane(cell.verifier)
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 9)


async def test_a_verifier_that_never_serves_is_not_waited_for_without_end(make_cell: MakeCell) -> None:
    cell = make_cell(bounds=Bounds(verifier_wait_s=20.0, warm_s=60.0))
    cell.verifier.holding.add("verify")
    track = cell.ask(max_tokens=9)
    await calm()
    cell.admission.verifier_warms = lambda: True
    cell.lose_verifier()
    await cell.clock.advance(81.0)
    with pytest.raises(Unavailable, match="within 80 s"):
        await read(track)


async def test_handovers_are_bounded(make_cell: MakeCell) -> None:
    cell = make_cell(bounds=Bounds(max_handovers=2))
    track = cell.ask(max_tokens=30)
    for number in range(3):
        cell.verifier.holding.add("verify")
        await calm()
        cell.lose_verifier()
        cell.verifier = FakeVerifier(cell.talk, cell.drafters, f"verify/{number + 1}", incarnation=30 + number)
        cell.lane = cell.add_lane(cell.verifier)
    with pytest.raises(Unavailable, match="3 verifiers were lost"):
        await read(track)


async def test_a_verifier_without_verdict_is_let_go_after_its_deadline(make_cell: MakeCell) -> None:
    cell = make_cell(waits=Conduct(verify_s=2.0))
    cell.verifier.holding.add("verify")
    track = cell.ask(max_tokens=9)
    await calm()
    await cell.clock.advance(2.1)
    assert cell.verifier.closed_because == "no verdict for 2 s"
    assert track.sequence.epoch == 1


async def test_a_sequence_the_verifier_does_not_know_is_prefilled_again(make_cell: MakeCell) -> None:
    cell = make_cell()
    cell.verifier.decline = Declined(Cursor(0, 0, 0, 0), RefusalReason.UNKNOWN_SEQUENCE)
    track = cell.ask(max_tokens=15)
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 15)
    assert track.handovers == 1
    assert cell.verifier.prefills == 2


@pytest.mark.parametrize(
    "tamper",
    [
        lambda v: v._replace(accepted=9, judged=9),
        lambda v: v._replace(next_token=VOCAB),
        lambda v: v._replace(judged=9),
        lambda v: v._replace(accepted=v.judged + 1),
    ],
)
async def test_a_verdict_that_fits_no_prefix_ends_the_request_as_the_verifier_s_fault(make_cell, tamper) -> None:
    cell = make_cell()
    cell.verifier.tampers = tamper
    track = cell.ask()
    await cell.finish(track)
    with pytest.raises(PeerError):
        await read(track)
    await calm()
    assert cell.clean()


async def test_a_bug_in_one_commit_fails_that_request_alone(make_cell: MakeCell) -> None:
    cell = make_cell()
    broken, fine = cell.ask((5, 6), max_tokens=20), cell.ask((8, 9), max_tokens=20)
    await calm(4)

    def take(_: object) -> None:
        raise RuntimeError("a bug")

    broken.answer.take = take
    await cell.finish(broken, fine)
    assert await read(fine) == answer_of((8, 9), 20)
    assert fine.handovers == 0
    with pytest.raises(PeerError):
        await read(broken)
    await calm()
    assert cell.clean()


@pytest.mark.parametrize("differs", [{"committed_len": 7}, {"round": 1}, {"round": 3}, {"epoch": 1}, {"sequence": 2}])
async def test_a_stale_verdict_is_dropped_counted_and_the_sequence_taken_in_anew(
    make_cell: MakeCell, differs: dict[str, int]
) -> None:
    cell = make_cell()

    def stale(verdict: Verdict) -> Verdict:
        if verdict.cursor.round != 2 or verdict.cursor.epoch:
            return verdict
        return Verdict(verdict.cursor._replace(**differs), 0, 1, 0, 0)

    cell.verifier.tampers = stale
    track = cell.ask(max_tokens=15)
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 15)
    assert cell.metrics.value("dropped_total", kind="verdict", reason="stale") == 1


async def test_a_first_token_that_is_none_fails_the_request(make_cell: MakeCell) -> None:
    cell = make_cell()
    cell.verifier.tampers_first = lambda prefilled: replace(prefilled, anchor=VOCAB)
    track = cell.ask(max_tokens=15)
    await cell.finish(track)
    with pytest.raises(PeerError, match="not in its vocabulary"):
        await read(track)
    assert track.answer.log.answered == 0


async def test_a_prompt_is_run_under_its_own_salt_wherever_it_goes(make_cell: MakeCell) -> None:
    cell = make_cell()
    tracks = [cell.ask(max_tokens=15, cache_salt=salt) for salt in ("one", "", "two")]
    await calm(20)
    cell.lose_verifier()
    second = FakeVerifier(cell.talk, cell.drafters, "verify/1", incarnation=22)
    cell.add_lane(second)
    await cell.finish(*tracks)
    for verifier in (cell.verifier, second):
        salts = {order.cursor.sequence: order.cache_salt for order in verifier.prompts}
        assert salts == {1: "one", 2: "", 3: "two"}


async def test_a_full_page_pool_keeps_sequences_in_line_until_pages_free(make_cell: MakeCell) -> None:
    cell = make_cell(pages=2)  # 32 token slots
    tracks = [cell.ask((seed, 3), max_tokens=25) for seed in range(4)]  # two pages each
    assert cell.admission.running == 1
    assert cell.admission.queued == 3
    await cell.finish(*tracks)
    assert [await read(track) for track in tracks] == [answer_of((seed, 3), 25) for seed in range(4)]
    assert [track.tally.ended is not None for track in tracks] == [True] * 4


async def test_a_verifier_that_has_no_pages_is_asked_again_later(make_cell: MakeCell) -> None:
    cell = make_cell()
    cell.verifier.no_pages = True
    track = cell.ask(max_tokens=5)
    await calm()
    assert cell.admission.queued == 1
    assert cell.clean()
    cell.verifier.no_pages = False
    await cell.clock.advance(0.6)
    assert await read(track) == answer_of((5, 6), 5)
    assert track.sequence.epoch == 1, "nothing was drawn under the first one, and it is not given out again"
    assert cell.metrics.value("prefills_total", reason="new") == 2


async def test_the_queue_is_bounded_and_says_when_to_come_back(make_cell: MakeCell) -> None:
    cell = make_cell(bounds=Bounds(max_running=1, max_queued=2))
    cell.verifier.holding.add("verify")
    for _ in range(3):
        cell.ask()
    with pytest.raises(Overloaded) as refused:
        cell.ask()
    assert refused.value.retry_after_s > 0
    assert cell.metrics.value("admission_rejections_total", reason="queue_full") == 1


async def test_without_a_verifier_requests_are_refused(make_cell: MakeCell) -> None:
    cell = make_cell()
    cell.lose_verifier()
    with pytest.raises(Unavailable, match="no verifier"):
        cell.ask()


async def test_a_client_that_does_not_read_is_cut_and_counted(make_cell: MakeCell) -> None:
    cell = make_cell(outlet=3)
    track = cell.ask(max_tokens=50, policy="off")
    await cell.finish(track)
    assert cell.metrics.value("slow_readers_cut_total") == 1
    with pytest.raises(Overloaded, match="reads too slowly"):
        await read(track)
    await calm()
    assert cell.clean()


async def test_abort_ends_an_answer_in_good_order(make_cell: MakeCell) -> None:
    cell = make_cell()
    cell.verifier.holding.add("verify")
    track = cell.ask(max_tokens=50)
    await calm()
    assert cell.admission.abort(track.request.id)
    assert not cell.admission.abort(track.request.id)
    assert await read(track) == answer_of((5, 6), 1)
    assert track.end == End(Reason.ABORT)


async def test_new_sequences_go_to_the_least_loaded_drafter(make_cell: MakeCell) -> None:
    cell = make_cell(drafters=2)
    cell.verifier.holding.add("verify")
    for _ in range(4):
        cell.ask(max_tokens=50)
    await calm()
    assert [len(drafter.rows) for drafter in cell.drafters] == [2, 2]


async def test_an_expensive_step_makes_greedy_verify_less(make_cell: MakeCell) -> None:
    steep = CostCurve([1, 2, 8], [64], [0.001, 1.0, 7.0])
    cell = make_cell(cost=steep)
    track = cell.ask(max_tokens=12)
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 12)
    assert track.tally.verified == 0
    assert cell.metrics.value("cost_curve_in_force", lane="verify/0") == 1


async def test_drafts_that_never_pay_are_bypassed_and_tried_again_now_and_then(make_cell: MakeCell) -> None:
    curve = CostCurve([1, 2, 8], [64], [0.001, 0.0011, 0.0017])
    cell = make_cell(cost=curve, outlet=1000, waits=Conduct(bypass=True))
    cell.drafters[0].wrong_every = 1  # every slot is wrong
    track = cell.ask(max_tokens=300)
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 300)
    drafts = cell.metrics.value("spec_decode_num_drafts_total")
    bypassed = cell.metrics.value("empty_blocks_total", reason="bypass")
    assert drafts + bypassed == 298  # the last token needs no draft
    assert 8 < drafts < 8 + 3 * 290 / 16


async def test_drafts_that_pay_are_never_bypassed(make_cell: MakeCell) -> None:
    curve = CostCurve([1, 2, 8], [64], [0.010, 0.0101, 0.0107])
    cell = make_cell(cost=curve, outlet=1000, waits=Conduct(bypass=True))
    track = cell.ask(max_tokens=200)
    await cell.finish(track)
    assert cell.metrics.value("empty_blocks_total", reason="bypass") == 0


@pytest.mark.parametrize("policy", ["fixed:2", "threshold:0.1"])
async def test_other_policies_are_not_second_guessed(make_cell: MakeCell, policy: str) -> None:
    curve = CostCurve([1, 2, 8], [64], [0.001, 0.0011, 0.0017])
    cell = make_cell(cost=curve, outlet=1000, waits=Conduct(bypass=True))
    cell.drafters[0].wrong_every = 1
    track = cell.ask(max_tokens=60, policy=policy)
    await cell.finish(track)
    assert cell.metrics.value("spec_decode_num_drafts_total") == 58


async def test_two_cohorts_take_turns_and_are_told_apart_by_number(make_cell: MakeCell) -> None:
    cell = make_cell(waits=Conduct(cohorts=2))
    tracks = [cell.ask((seed, 7), max_tokens=30) for seed in range(6)]
    cell.verifier.holding.add("verify")
    await calm()
    drafting = [line for line in cell.talk.lines if "<- draft [" in line]
    cell.verifier.let_go("verify")
    await cell.finish(*tracks)
    assert len(drafting) == 2, "the second half is drafted for while the first is verified"
    for seed, track in enumerate(tracks):
        assert await read(track) == answer_of((seed, 7), 30)
    numbers = {track.sequence.number: f"s{place + 1}." for place, track in enumerate(tracks)}
    halves = [{name for number, name in numbers.items() if number % 2 == part} for part in (0, 1)]
    for line in cell.talk.lines:
        if "<- verify [" in line:
            there = {name for name in numbers.values() if f"{name}0." in line}
            assert there <= halves[0] or there <= halves[1]
    assert cell.lane.depth == 2


async def test_a_lane_without_drafts_leaves_drafters_alone_and_fills_them_when_drafts_come_back(
    make_cell: MakeCell,
) -> None:
    cell = make_cell(outlet=1000)
    pipelining = cell.lane._loop.pipelining
    pipelining.mode = pipelining._home = Mode.PLAIN
    tracks = [cell.ask((seed, 7), max_tokens=60) for seed in range(5)]
    insists = cell.ask((9, 7), max_tokens=60, policy="fixed:2")
    while tracks[0].tally.rounds < 12:
        await calm(1)
    opened = [line for line in cell.talk.lines if "<- open" in line]
    assert len(opened) == 1, "whoever names a length has a drafter all the same"
    assert insists.tally.accepted > 0
    assert not any(track.tally.drafted for track in tracks)
    assert cell.metrics.value("empty_blocks_total", reason="no_drafter") == 0
    pipelining.mode = pipelining._home = Mode.ONE
    await cell.finish(*tracks, insists)
    for seed, track in enumerate(tracks):
        assert await read(track) == answer_of((seed, 7), 60)
        assert track.tally.accepted > 0
    assert cell.metrics.value("prefills_total", reason="new") == 6


async def test_rows_found_missing_just_before_a_lane_goes_without_drafts_are_asked_for_only_after_it(
    make_cell: MakeCell,
) -> None:
    cell = make_cell(outlet=1000)
    pipelining = cell.lane._loop.pipelining
    cell.verifier.holding.add("verify")
    track, *others = [cell.ask((seed, 7), max_tokens=60) for seed in range(5)]
    await calm()
    del cell.drafters[0].rows[track.sequence.number][1]
    await cell.clock.advance(1.0)
    cell.verifier.let_go("verify")
    cell.verifier.holding.add("verify")
    await calm()
    assert track.missing == 1
    pipelining.mode = pipelining._home = Mode.PLAIN
    cell.verifier.let_go("verify")
    rounds = track.tally.rounds
    while track.tally.rounds < rounds + 10:
        await calm(1)
    assert pipelining.mode is Mode.PLAIN
    assert not [line for line in cell.talk.lines if "resend" in line]
    pipelining.mode = pipelining._home = Mode.ONE
    await cell.finish(track, *others)
    assert await read(track) == answer_of((0, 7), 60)
    asked = [line for line in cell.talk.lines if f"<- resend s{track.sequence.number}." in line]
    assert "from=1 " in asked[0]
    assert cell.metrics.value("resends_total", reason="features_missing") == 0
    assert track.tally.accepted > 10


async def test_rows_rest_while_no_draft_is_near_and_are_caught_up_before_one(make_cell: MakeCell) -> None:
    curve = CostCurve([1, 2, 8], [64], [0.001, 0.0011, 0.0017])
    cell = make_cell(cost=curve, outlet=1000)
    cell.drafters[0].wrong_every = 1  # every slot is wrong
    track = cell.ask(max_tokens=300)
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 300)
    plain = [line for line in cell.talk.lines if "<- verify [" in line and "no-sink" in line]
    assert len(plain) > 200
    assert 1 <= cell.metrics.value("resends_total", reason="rested") < 20
    assert cell.metrics.value("empty_blocks_total", reason="features_missing") == 0


async def test_without_a_cost_curve_a_gauge_says_so(make_cell: MakeCell) -> None:
    cell = make_cell()
    track = cell.ask(max_tokens=12)
    await cell.finish(track)
    assert track.tally.verified == track.tally.drafted > 0
    assert cell.metrics.value("cost_curve_in_force", lane="verify/0") == 0


async def test_a_lane_lives_through_a_storm_of_arrivals_and_cancellations(make_cell: MakeCell) -> None:
    cell = make_cell(drafters=2, bounds=Bounds(max_running=8))
    tracks = [cell.ask((seed % 90, 1), max_tokens=3 + seed % 17) for seed in range(60)]
    for victim in tracks[::7]:
        await asyncio.sleep(0)
        cell.admission.ended(victim, Cancelled("gone"))
    await cell.finish(*tracks)
    for seed, track in enumerate(tracks):
        if seed % 7:
            assert await read(track) == answer_of((seed % 90, 1), 3 + seed % 17)
    await calm()
    assert cell.clean()
    assert cell.admission.running == cell.admission.queued == 0


async def test_a_drafter_without_room_is_passed_over(make_cell: MakeCell) -> None:
    cell = make_cell(drafters=2, outlet=1000)
    cell.drafters[0].full = True
    track = cell.ask(max_tokens=60)
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 60)
    assert track.tally.drafted > 0
    assert [line for line in cell.talk.lines if line.startswith("draft/1 <- open")]
    assert len([line for line in cell.talk.lines if line.startswith("draft/0 <- open")]) == 1


async def test_a_drafter_that_never_answers_an_open_is_given_up(make_cell: MakeCell) -> None:
    cell = make_cell(drafters=2, outlet=1000)
    cell.drafters[0].holding.add("open")
    track = cell.ask(max_tokens=400)
    cell.verifier.holding.add("verify")
    await calm()
    await cell.clock.advance(6.0)
    cell.verifier.let_go("verify")
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 400)
    assert cell.metrics.value("dropped_total", kind="opened", reason="overdue") == 1
    assert track.tally.drafted > 0


async def test_a_drafter_that_never_answers_an_open_is_let_go_although_nobody_waited_for_it(
    make_cell: MakeCell,
) -> None:
    cell = make_cell(drafters=2)
    cell.drafters[0].holding.add("open")
    track = cell.ask(max_tokens=5)
    await calm()
    await cell.clock.advance(1.5)
    assert await read(track) == answer_of((5, 6), 5)
    await cell.clock.advance(2.0)
    assert not cell.drafters[0].closed_because
    await cell.clock.advance(2.0)
    assert cell.drafters[0].closed_because == "an open was not answered for 5 s"
    other = cell.ask(max_tokens=20)
    await cell.finish(other)
    assert other.tally.drafted > 0
    assert cell.lane.drafters == (cell.drafters[1],)


async def test_rows_that_were_sent_too_late_are_there_nevertheless(make_cell: MakeCell) -> None:
    cell = make_cell()
    cell.drafters[0].holding.add("open")
    cell.verifier.holding |= {"verify", "resend"}
    track = cell.ask(max_tokens=60)
    await calm()
    await cell.clock.advance(1.1)  # prefilled without a drafter, which gives room afterwards
    cell.drafters[0].let_go("open")
    cell.verifier.let_go("verify")
    cell.verifier.holding.add("verify")
    await calm()
    await cell.clock.advance(5.1)  # within one round
    assert cell.metrics.value("dropped_total", kind="resent", reason="overdue") == 1
    cell.verifier.let_go("resend")
    cell.verifier.let_go("verify")
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 60)
    assert track.tally.accepted > 20
    assert cell.metrics.value("resends_total", reason="features_missing") == 0


async def test_rows_that_never_arrive_do_not_make_every_round_wait(make_cell: MakeCell) -> None:
    cell = make_cell()
    cell.drafters[0].ingest = lambda *rows: None
    track = cell.ask(max_tokens=64)
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 64)
    asked = [line for line in cell.talk.lines if line.startswith("draft/0 <- draft")]
    assert len(asked) < 12


async def test_a_prefill_that_is_only_slow_is_waited_for(make_cell: MakeCell) -> None:
    cell = make_cell(waits=Conduct(prefill_s=10.0), outlet=1000)
    busy = cell.ask((8, 9), max_tokens=500)
    await calm(4)
    cell.verifier.holding |= {"prefill", "verify"}
    slow = cell.ask((5, 6), max_tokens=4)
    for _ in range(30):  # rounds come all the time
        await cell.clock.advance(2.0)
        cell.verifier.let_go("verify")
        cell.verifier.holding.add("verify")
    assert (slow.handovers, busy.handovers) == (0, 0)
    assert cell.verifier.prefills == 2
    cell.verifier.let_go("prefill")
    cell.verifier.let_go("verify")
    await cell.finish(slow, busy)
    assert await read(slow) == answer_of((5, 6), 4)


async def test_a_verifier_that_says_nothing_while_it_owes_a_prefill_is_let_go(make_cell: MakeCell) -> None:
    cell = make_cell(waits=Conduct(prefill_s=10.0))
    await cell.clock.advance(1.0)
    cell.verifier.holding.add("prefill")
    cell.ask((5, 6), max_tokens=4)
    await calm()
    await cell.clock.advance(10.5)
    assert cell.verifier.closed_because == "no prefill within 10 s"


async def test_a_prefill_that_others_overtook_is_ordered_again(make_cell: MakeCell) -> None:
    cell = make_cell(waits=Conduct(prefill_s=10.0))
    cell.verifier.holding.add("prefill")
    lost = cell.ask((5, 6), max_tokens=4)
    await calm()
    cell.verifier.holding.discard("prefill")
    await cell.clock.advance(5.0)
    later = cell.ask((8, 9), max_tokens=4)
    await cell.finish(later)
    await cell.clock.advance(5.5)
    await cell.finish(lost)
    assert await read(lost) == answer_of((5, 6), 4)
    assert lost.handovers == 1


async def test_a_first_token_of_an_earlier_epoch_is_not_taken(make_cell: MakeCell) -> None:
    cell = make_cell()
    cell.verifier.tampers_first = lambda first: first if first.cursor.epoch else replace(first, anchor=1)
    cell.verifier.holding.add("prefill")
    track = cell.ask((5, 6), max_tokens=4)
    await calm()
    cell.lane._make_room()  # it begins again, on the same verifier
    await calm()
    assert (track.sequence.epoch, cell.verifier.prefills) == (1, 2)
    cell.verifier.let_go("prefill")
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 4)
    assert cell.metrics.value("dropped_total", kind="prefilled", reason="stale") == 1


async def test_who_is_refused_again_and_again_hears_why(make_cell: MakeCell) -> None:
    cell = make_cell(bounds=Bounds(max_handovers=2))
    nan = Declined(Cursor(0, 0, 0, 0), RefusalReason.INTERNAL, "the target's logits are not numbers")
    track = cell.ask(max_tokens=30)
    cell.verifier.declines_all = nan
    with pytest.raises(PeerError, match="begun 3 times, and refused again: the target's logits are not numbers"):
        await read(track)


async def test_a_round_is_calm_that_follows_another_and_neither_has_drafts(
    make_cell: MakeCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[int, bool]] = []
    monkeypatch.setattr(
        "coordinator.scheduling.step_cost.StepCost.observe",
        lambda self, tokens, context, seconds, sequences, *, ridden, beside, calm: steps.append((int(tokens), calm)),
    )
    cell = make_cell()
    for _ in range(2):  # each finds the lane empty
        await cell.finish(cell.ask(max_tokens=5, policy="off"))
        assert steps == [(1, False), (1, True), (1, True), (1, True)]
        steps.clear()
    await cell.finish(cell.ask(max_tokens=20, policy="fixed:2"))
    assert not any(calm for _, calm in steps)
    assert any(tokens > 1 for tokens, _ in steps)
    steps.clear()
    drafted = cell.ask(max_tokens=7, policy="fixed:2")
    plain = cell.ask((9, 4), max_tokens=30, policy="off")
    await cell.finish(drafted, plain)
    kinds = [calm for _, calm in steps]
    assert kinds == sorted(kinds)  # no calm round while anybody drafts, then the first plain one is not calm
    assert sum(tokens > 1 for tokens, _ in steps) < kinds.index(True)
