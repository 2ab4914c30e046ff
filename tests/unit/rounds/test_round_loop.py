"""Every row of the table of a sequence at its verifier, through `RoundLoop`."""

from dataclasses import replace

import pytest

from dspark.rounds.events import (
    Acknowledged,
    Admit,
    BlocksCame,
    CallBackPrefill,
    CloseAtDrafter,
    DrafterEvent,
    DrafterLost,
    DrafterReady,
    How,
    Keep,
    OpenAtDrafter,
    PassEnded,
    Prefill,
    Prefilled,
    PrefillRefused,
    Release,
    Released,
    Report,
    RunPass,
    SendOrder,
    SendRows,
    Why,
)
from dspark.rounds.orders import MAX_OPEN_ORDERS, Waits
from dspark.rounds.plan import Plan, PlanKind, SequencePlan, Terms
from dspark.rounds.state import Event, SequenceState, State, UnlistedEvent
from dspark.types import InForm, Verdict
from tests.unit.rounds.verifier import DRAFTER, OTHER, PROMPT, Verifier, of, only, priced, rounds


@pytest.fixture
def verifier() -> Verifier:
    return Verifier()


def test_an_event_the_table_does_not_list_is_an_error() -> None:
    sequence = SequenceState(4, 0, PROMPT, 20, frozenset())
    with pytest.raises(UnlistedEvent, match=f"{State.PREFILL.value}.*{Event.BLOCK_CAME.value}"):
        sequence.apply(Event.BLOCK_CAME)
    assert sequence.state is State.PREFILL


# Prompts.


def test_an_admitted_sequence_is_prefilled_and_opened_at_its_drafter(verifier: Verifier) -> None:
    actions = verifier.tell(Admit(1, 0, PROMPT, 20, drafter=DRAFTER))
    assert actions == [Prefill(1, 0), OpenAtDrafter(DRAFTER, 1, 0)]
    assert verifier.state(1) == "PREFILL"


def test_a_prefilled_sequence_reports_round_0_and_sends_its_rows_in_bulk() -> None:
    verifier = Verifier()
    verifier.hold_rows = True
    verifier.tell(Admit(1, 0, PROMPT, 20, drafter=DRAFTER))
    actions = verifier.tell(Prefilled(1, 0, 7))
    (said,) = rounds(actions)
    assert (said.round, said.committed_before, said.tokens) == (0, PROMPT, (7,))
    assert only(actions, SendRows) == SendRows(DRAFTER, 1, 0, 0, PROMPT)


def test_a_prompt_without_pages_is_gone(verifier: Verifier) -> None:
    verifier.tell(Admit(1, 0, PROMPT, 20, drafter=DRAFTER))
    actions = verifier.tell(PrefillRefused(1, 0))
    assert only(actions, Released) == Released(1, 0, 0, Why.NO_PAGES)
    assert only(actions, CloseAtDrafter).drafter == DRAFTER
    assert verifier.state(1) == "GONE"
    assert verifier.freed == [(1, 0)]


@pytest.mark.parametrize("drawn", [True, False])
def test_a_prompt_that_settles_is_called_back_and_its_anchor_reported_if_it_was_drawn(
    drawn: bool, verifier: Verifier
) -> None:
    verifier.tell(Admit(1, 0, PROMPT, 20))
    assert only(verifier.tell(Release(1, 0, How.SETTLE)), CallBackPrefill).sequence == 1
    assert verifier.state(1) == "SETTLING"
    actions = verifier.tell(Prefilled(1, 0, 7) if drawn else PrefillRefused(1, 0))
    assert len(rounds(actions)) == drawn
    assert only(actions, Released) == Released(1, 0, int(drawn))


# Between rounds.


def test_an_order_carries_the_rows_since_the_last_one_the_anchor_and_the_slots() -> None:
    verifier = Verifier()
    row = only(verifier.prefilled(1), SendOrder).rows[0]
    assert (row.committed_len, row.anchor, row.slots, row.first_row) == (PROMPT + 1, 7, 3, PROMPT)
    run = only(verifier.blocks(only(verifier.said, SendOrder), (0.9, 0.9, 0.9)), RunPass)
    row = only(verifier.ended(run, accepted=2), SendOrder).rows[0]
    assert (row.committed_len, row.first_row, row.round) == (PROMPT + 4, PROMPT, 2)


@pytest.mark.parametrize(
    ("tokens", "form", "forced"),
    [
        ((3, 99, 5), InForm((True, True, True), True), (True, True)),
        ((3, 4, 5), InForm((False, True), True), (False, True, False)),
        ((3, 4, 5), InForm((False, False, False), True), ()),
    ],
)
def test_what_forms_did_is_reported_of_the_tokens_that_are_said(
    tokens: tuple[int, ...], form: InForm, forced: tuple[bool, ...], verifier: Verifier
) -> None:
    verifier.prefilled(1)
    run = only(verifier.blocks(only(verifier.said, SendOrder), (0.9, 0.9, 0.9)), RunPass)
    drawn = [Verdict(tokens, form=form)]
    (said,) = rounds(verifier.tell(PassEnded(run.number, drawn)))
    assert (said.forced, said.forbidden) == (forced, True)


def test_a_block_that_a_pass_found_unsound_is_told_of_as_an_empty_one(verifier: Verifier) -> None:
    verifier.prefilled(1)
    run = only(verifier.blocks(only(verifier.said, SendOrder), (0.9, 0.9, 0.9)), RunPass)
    actions = verifier.tell(PassEnded(run.number, [Verdict((5,), spoilt=True)]))
    (said,) = rounds(actions)
    assert (said.tokens, said.why_empty) == ((5,), "invalid")
    assert (said.accepted, said.verified, said.confidence) == (0, 0, ())
    assert only(actions, SendOrder).rows[0].committed_len == PROMPT + 2


@pytest.mark.parametrize(
    ("room", "drafter", "plan", "why"),
    [
        (20, DRAFTER, Plan(Terms(PlanKind.OFF, 3), window=2), "off"),
        (20, DRAFTER, Plan(Terms(PlanKind.PRICE, 0), window=2), "off"),
        (20, 0, priced(), "no drafter"),
        (2, DRAFTER, priced(), "last token"),
    ],
)
def test_without_a_use_or_a_way_for_a_block_the_round_is_plain(
    room: int, drafter: int, plan: Plan, why: str
) -> None:
    verifier = Verifier(plan)
    actions = verifier.prefilled(1, drafter=drafter, room=room)
    assert not of(actions, SendOrder)
    assert only(actions, RunPass).rows[0].prefix == 0
    assert rounds(verifier.ended(only(actions, RunPass)))[0].why_empty == why


def test_no_row_is_sent_before_drafts_are_planned_and_then_all_in_bulk() -> None:
    verifier = Verifier(Plan(window=1 << 20))
    verifier.hold_rows = True
    verifier.tell(Admit(1, 0, PROMPT, 500, drafter=DRAFTER))
    actions = verifier.tell(Prefilled(1, 0, 7))
    for _ in range(100):
        actions = verifier.ended(only(actions, RunPass))
        assert rounds(actions)[0].why_empty == "off"
    assert {type(each) for each in verifier.said}.isdisjoint({OpenAtDrafter, SendRows})
    verifier.tell(priced(window=1 << 20))
    actions = verifier.ended(only(actions, RunPass))
    assert only(actions, OpenAtDrafter) == OpenAtDrafter(DRAFTER, 1, 0)
    assert only(actions, SendRows) == SendRows(DRAFTER, 1, 0, 0, PROMPT + 101)
    actions = verifier.ended(only(actions, RunPass))
    assert rounds(actions)[0].why_empty == "rows missing"
    verifier.tell(DrafterReady(DRAFTER, 1, 0, PROMPT + 101))
    assert only(verifier.ended(only(actions, RunPass)), SendOrder).rows[0].first_row == PROMPT + 101


def test_few_rows_go_along_with_the_first_order_that_is_planned() -> None:
    verifier = Verifier(Plan(window=1 << 20), waits=Waits(inline_rows=PROMPT + 1))
    run = only(verifier.prefilled(1, room=500), RunPass)
    verifier.tell(priced(window=1 << 20))
    actions = verifier.ended(run)
    assert only(actions, OpenAtDrafter) == OpenAtDrafter(DRAFTER, 1, 0)
    assert only(actions, SendOrder).rows[0].first_row == 0


def test_a_long_plain_stretch_is_caught_up_with_in_bulk() -> None:
    verifier = Verifier(priced(window=1 << 20))
    order = only(verifier.prefilled(1, room=500), SendOrder)
    verifier.hold_rows = True
    actions = verifier.tell(Plan(window=1 << 20))
    actions = verifier.ended(only(verifier.blocks(order, (0.9,)), RunPass))
    for _ in range(100):
        actions = verifier.ended(only(actions, RunPass))
        assert not of(actions, SendRows)
    verifier.tell(priced(window=1 << 20))
    actions = verifier.ended(only(actions, RunPass))
    assert only(actions, SendRows) == SendRows(DRAFTER, 1, 0, PROMPT, PROMPT + 102)


def test_plain_rounds_say_that_rows_are_missing_until_they_arrive() -> None:
    """The plan that asked for them may be over by then."""
    verifier = Verifier(priced(window=1 << 20))
    verifier.hold_rows = True
    actions = verifier.prefilled(1, room=500)
    verifier.tell(Plan(window=1 << 20))
    for _ in range(3):
        actions = verifier.ended(only(actions, RunPass))
        assert rounds(actions)[0].why_empty == "rows missing"
    verifier.tell(DrafterReady(DRAFTER, 1, 0, PROMPT))
    actions = verifier.ended(only(actions, RunPass))
    assert rounds(verifier.ended(only(actions, RunPass)))[0].why_empty == "off"


@pytest.mark.parametrize("tried", [False, True])
def test_plain_rounds_name_another_drafter_and_send_it_nothing(tried: bool) -> None:
    verifier = Verifier(priced(window=1 << 20) if tried else Plan(window=1 << 20))
    actions = verifier.prefilled(1, room=500)
    if tried:
        actions = verifier.blocks(only(actions, SendOrder), (0.9,))
    other = {1: SequencePlan(drafter=OTHER)}
    said = verifier.tell(Plan(window=1 << 20, sequences=other))
    assert said == [CloseAtDrafter(DRAFTER, 1, 0)] * tried
    actions = verifier.ended(only(actions, RunPass))
    verifier.tell(priced(window=1 << 20))
    actions = verifier.ended(only(actions, RunPass))
    assert only(actions, OpenAtDrafter).drafter == only(actions, SendRows).drafter == OTHER
    opened = [each.drafter for each in of(verifier.said, OpenAtDrafter)]
    assert opened == [DRAFTER] * tried + [OTHER]


def test_no_row_is_sent_for_a_last_token() -> None:
    verifier = Verifier(Plan(window=1 << 20))
    run = only(verifier.prefilled(1, room=3), RunPass)
    verifier.tell(priced(window=1 << 20))
    actions = verifier.ended(run)
    assert not of(actions, OpenAtDrafter)
    assert rounds(verifier.ended(only(actions, RunPass)))[0].why_empty == "last token"


def test_a_drafter_that_was_lost_gets_nothing_until_it_is_named_again() -> None:
    verifier = Verifier(priced(window=1 << 20))
    order = only(verifier.prefilled(1, room=500), SendOrder)
    run = only(verifier.tell(DrafterLost(order.drafter)), RunPass)
    actions = verifier.ended(run)
    assert not of(actions, OpenAtDrafter)
    actions = verifier.ended(only(actions, RunPass))
    assert rounds(actions)[0].why_empty == "no drafter"
    again = replace(priced(window=1 << 20), sequences={1: SequencePlan(drafter=DRAFTER)})
    assert only(verifier.tell(again), OpenAtDrafter).drafter == DRAFTER


def test_rows_of_a_late_order_are_sent_again_once_its_drafter_replied() -> None:
    """Whether they arrived is not known, and behind a gap no row is of use."""
    verifier = Verifier(priced(window=1 << 20))
    order = only(verifier.prefilled(1, room=500), SendOrder)
    run = only(verifier.blocks(order, (0.9,)), RunPass)
    late = only(verifier.ended(run), SendOrder)
    assert late.rows[0].first_row == PROMPT
    verifier.now = verifier.loop.next_at() or 0.0
    actions = verifier.tell()
    for _ in range(3):
        actions = verifier.ended(only(actions, RunPass))
        assert not of(actions, SendOrder), "the drafter owes a reply"
    verifier.blocks(late, (0.9,))
    assert only(verifier.ended(only(actions, RunPass)), SendOrder).rows[0].first_row == PROMPT


# Orders.


def test_a_block_is_clamped_to_the_slots_of_its_order() -> None:
    verifier = Verifier(priced(slots=2))
    order = only(verifier.prefilled(1), SendOrder)
    assert only(verifier.blocks(order, (1.0,) * 5), RunPass).rows[0].prefix == 2
    verifier = Verifier(priced(slots=3))
    order = only(verifier.prefilled(1, room=3), SendOrder)
    assert order.rows[0].slots == 1, "the prefill took one, and the target's own token takes one"


def test_a_block_for_another_order_is_stale(verifier: Verifier) -> None:
    order = only(verifier.prefilled(1), SendOrder)
    assert not verifier.tell(BlocksCame(order.order + 7, [(0.9,)], [PROMPT]))
    assert verifier.state(1) == "ORDERED"
    assert verifier.loop.counts["late block"] == 1


def test_a_late_block_is_an_empty_one_and_its_drafter_is_asked_nothing_until_it_came() -> None:
    verifier = Verifier()
    order = only(verifier.prefilled(1), SendOrder)
    verifier.now = verifier.loop.next_at() or 0.0
    actions = verifier.tell()
    assert only(actions, DrafterEvent) == DrafterEvent(DRAFTER, "late")
    assert only(actions, RunPass).rows[0].prefix == 0
    actions = verifier.ended(only(actions, RunPass))
    assert rounds(actions)[0].why_empty == "late"
    assert rounds(verifier.ended(only(actions, RunPass)))[0].why_empty == "drafter late"
    verifier.blocks(order, (0.9,))
    run = verifier.said[-1]
    verifier.acknowledge(verifier.said)
    assert of(verifier.ended(run), SendOrder)


def test_a_drafter_gets_no_more_orders_than_it_takes(verifier: Verifier) -> None:
    orders = [
        order
        for number in range(MAX_OPEN_ORDERS + 2)
        for order in of(verifier.prefilled(number), SendOrder)
    ]
    assert len(orders) == MAX_OPEN_ORDERS
    told = [verifier.loop.sequence(number) for number in (MAX_OPEN_ORDERS, MAX_OPEN_ORDERS + 1)]
    assert {each.why_empty for each in told if each is not None} == {"drafter busy"}
    verifier.blocks(orders[0], (0.9,))
    assert of(verifier.prefilled(99), SendOrder), "it has answered one"


def test_a_drafter_that_stays_silent_is_given_up(verifier: Verifier) -> None:
    verifier.prefilled(1)
    for _ in range(2):
        verifier.now = verifier.loop.next_at() or 0.0
        actions = verifier.tell()
    assert only(actions, DrafterEvent) == DrafterEvent(DRAFTER, "silent")
    assert verifier.loop.next_at() is None


def test_a_lost_drafter_leaves_empty_blocks_and_nobody_is_asked_for_that_anchor_again() -> None:
    verifier = Verifier()
    verifier.prefilled(1)
    actions = verifier.tell(DrafterLost(DRAFTER))
    assert only(actions, RunPass).rows[0].prefix == 0
    assert only(actions, DrafterEvent) == DrafterEvent(DRAFTER, "lost")
    assert rounds(verifier.ended(only(actions, RunPass)))[0].why_empty == "drafter lost"


def test_another_drafter_takes_over_between_rounds_once_it_has_the_rows(verifier: Verifier) -> None:
    order = only(verifier.prefilled(1), SendOrder)
    verifier.hold_rows = True
    actions = verifier.tell(replace(priced(), sequences={1: SequencePlan(drafter=OTHER)}))
    assert of(actions, OpenAtDrafter) == [OpenAtDrafter(OTHER, 1, 0)]
    assert of(actions, SendRows) == [SendRows(OTHER, 1, 0, 0, PROMPT)]
    run = only(verifier.blocks(order, (0.9,)), RunPass)
    order = only(verifier.ended(run), SendOrder)
    assert order.drafter == DRAFTER, "the old one drafts until the new one can"
    assert not of(verifier.tell(DrafterReady(OTHER, 1, 0, PROMPT)), CloseAtDrafter)
    verifier.acknowledge(verifier.said)
    actions = verifier.ended(only(verifier.blocks(order, (0.9,)), RunPass))
    assert only(actions, CloseAtDrafter) == CloseAtDrafter(DRAFTER, 1, 0)
    assert only(actions, SendOrder).drafter == OTHER
    assert only(actions, SendOrder).rows[0].first_row == PROMPT


@pytest.mark.parametrize("why", ["", "unknown sequence"])
def test_a_drafter_that_lost_rows_gets_none_where_another_takes_over(
    why: str, verifier: Verifier
) -> None:
    order = only(verifier.prefilled(1, room=500), SendOrder)
    verifier.hold_rows = True
    verifier.tell(replace(priced(), sequences={1: SequencePlan(drafter=OTHER)}))
    actions = verifier.tell(BlocksCame(order.order, [(0.9,)], [4], [why]))
    assert not of(actions, SendRows)
    assert not of(actions, OpenAtDrafter)
    assert len(of(actions, CloseAtDrafter)) == (not why), "it may have forgotten the sequence"
    verifier.tell(DrafterReady(OTHER, 1, 0, PROMPT))
    assert only(verifier.ended(only(actions, RunPass)), SendOrder).drafter == OTHER


@pytest.mark.parametrize("drafter", [0, OTHER])
def test_a_drafter_that_was_closed_behind_its_order_is_sent_nothing(
    drafter: int, verifier: Verifier
) -> None:
    order = only(verifier.prefilled(1, room=500), SendOrder)
    named = Plan(window=1 << 20, sequences={1: SequencePlan(drafter=drafter)})
    assert verifier.tell(named) == [CloseAtDrafter(DRAFTER, 1, 0)]
    actions = verifier.tell(BlocksCame(order.order, [(0.9,)], [4]))
    assert [type(each) for each in actions] == [RunPass]


def test_missing_rows_at_a_drafter_empty_the_block_and_are_sent_in_bulk(verifier: Verifier) -> None:
    order = only(verifier.prefilled(1), SendOrder)
    actions = verifier.tell(BlocksCame(order.order, [(0.9,)], [4]))
    assert only(actions, SendRows) == SendRows(DRAFTER, 1, 0, 4, PROMPT)
    verifier.tell(replace(verifier.loop.plan, sequences={1: SequencePlan(drafter=OTHER)}))
    said = rounds(verifier.ended(only(actions, RunPass)))[0]
    assert (said.why_empty, said.drafter) == ("rows lost", DRAFTER), "whoever is chosen meanwhile"
    assert only(actions, RunPass).rows[0].prefix == 0


# Passes.


def test_a_cohort_waits_for_all_of_its_blocks(verifier: Verifier) -> None:
    verifier.prefilled(1, drafter=DRAFTER)
    (first,) = of(verifier.said, SendOrder)
    verifier.prefilled(2, drafter=OTHER)
    second = of(verifier.said, SendOrder)[1]
    assert not of(verifier.blocks(second, (0.9,)), RunPass)
    run = only(verifier.blocks(first, (0.9,)), RunPass)
    assert [row.answer for row in run.rows] == [first, second]


def test_a_row_names_the_answer_with_its_block_and_its_place_there_until_it_is_judged() -> None:
    verifier = Verifier(priced(window=0))
    order = only(verifier.prefilled(1, 2), SendOrder)
    run = only(verifier.blocks(order, (0.9,), (0.9,)), RunPass)
    assert [(row.answer, row.place) for row in run.rows] == [(order, 0), (order, 1)]
    verifier.ended(run)
    assert (held := verifier.loop.sequence(1)) is not None
    assert held.answer is None, "else it stays in memory for as long as the sequence waits"


def test_a_cohort_waits_for_acknowledgements_as_long_as_for_a_block_and_no_longer() -> None:
    verifier = Verifier(priced(window=0))
    run = only(verifier.prefilled(1, 2, drafter=0), RunPass)
    verifier.ended(run)
    assert not of(verifier.tell(Acknowledged(1, 0, 1)), RunPass)
    assert verifier.loop.next_at() == 0.5
    verifier.now = 0.5
    assert [row.sequence for row in only(verifier.tell(), RunPass).rows] == [1]
    assert verifier.loop.next_at() is None


def test_two_cohorts_take_turns_by_the_number_of_a_sequence() -> None:
    verifier = Verifier(priced(cohorts=2))
    verifier.prefilled(1, 2, 3, 4)
    (order,) = of(verifier.said, SendOrder)
    runs = of(verifier.blocks(order, *[(0.9,)] * 4), RunPass)
    assert [[row.sequence for row in run.rows] for run in runs] == [[2, 4], [1, 3]]
    order = only(verifier.ended(runs[0]), SendOrder)
    assert [row.sequence for row in order.rows] == [2, 4]


def test_a_verdict_is_reported_with_all_that_was_drafted() -> None:
    verifier = Verifier(priced(0.5))
    order = only(verifier.prefilled(1), SendOrder)
    run = only(verifier.blocks(order, (0.9, 0.1, 0.7)), RunPass)
    report = only(verifier.ended(run, accepted=1), Report)
    (said,) = report.rounds
    assert (said.round, said.committed_before, said.tokens) == (1, PROMPT + 1, (3, 3))
    assert (said.accepted, said.verified, tuple(said.confidence)) == (1, 1, (0.9, 0.1, 0.7))
    assert said.drafter == DRAFTER


@pytest.mark.parametrize(("token", "room", "kept"), [(99, 20, 1), (3, 3, 2)])
def test_a_stop_token_or_the_length_holds_it(token: int, room: int, kept: int) -> None:
    verifier = Verifier(priced(slots=3))
    order = only(verifier.prefilled(1, room=room), SendOrder)
    run = only(verifier.blocks(order, (0.9, 0.9)), RunPass)
    actions = verifier.ended(run, accepted=1, token=token)
    assert len(rounds(actions)[0].tokens) == kept
    assert verifier.state(1) == "HELD"
    assert not of(verifier.acknowledge(actions), RunPass), "its answer is full"


def test_whoever_could_not_be_judged_leaves_and_the_others_go_on() -> None:
    verifier = Verifier(priced(slots=0))
    run = only(verifier.prefilled(1, 2, 3), RunPass)
    verifier.tell(Release(3, 0, How.SETTLE))
    actions = verifier.tell(PassEnded(run.number, [Verdict((4, 5)), None, None]))
    assert [each.sequence for each in rounds(actions)] == [1]
    gone = {each.sequence: each for each in of(actions, Released)}
    assert (gone[2].why, gone[2].rounds) == (Why.FAILED, 1)
    assert gone[3].why is None, "it was to leave anyhow"
    assert {2, 3} <= {sequence for sequence, _ in verifier.freed}
    run = only(verifier.acknowledge(actions) or actions, RunPass)
    assert [row.sequence for row in run.rows] == [1]
    actions = verifier.tell(PassEnded(run.number, [None]))
    assert actions == [Released(1, 0, 2, Why.FAILED)], "and no report"


def test_a_prefix_is_cut_to_the_pages_there_are() -> None:
    verifier = Verifier(pages=PROMPT + 2)
    order = only(verifier.prefilled(1), SendOrder)
    assert only(verifier.blocks(order, (0.9, 0.9, 0.9)), RunPass).rows[0].prefix == 1


# Leaving.


@pytest.mark.parametrize("state", ["IDLE", "ORDERED", "READY", "HELD"])
def test_between_passes_settling_is_leaving(state: str) -> None:
    verifier = Verifier(priced(window=0) if state == "HELD" else priced())
    verifier.prefilled(1)
    (order,) = of(verifier.said, SendOrder)
    if state in ("HELD", "IDLE"):
        run = only(verifier.blocks(order, ()), RunPass)
        verifier.ended(run) if state == "HELD" else verifier.tell(
            PassEnded(run.number, [Verdict((3,))])
        )
    elif state == "READY":
        verifier.prefilled(2, drafter=OTHER)
        verifier.blocks(order, (0.9,))
    if state == "IDLE":  # nobody rests there: a sequence that is told to settle with the verdict is
        sequence = verifier.loop.sequence(1)
        sequence.state = State.IDLE
    assert verifier.state(1) == state
    assert only(verifier.tell(Release(1, 0, How.SETTLE)), Released).why is None
    assert verifier.state(1) == "GONE"


def test_dropped_it_is_gone_at_once_and_its_pages_when_its_pass_is_over(verifier: Verifier) -> None:
    run = only(verifier.prefilled(1, drafter=0), RunPass)
    verifier.tell(Release(1, 0, How.DROP))
    assert verifier.state(1) == "GONE"
    assert verifier.freed == []
    assert not rounds(verifier.ended(run))
    assert verifier.freed == [(1, 0)]
    assert verifier.loop.counts["verdict of a dropped sequence"] == 1


def test_a_block_that_comes_for_who_left_is_counted(verifier: Verifier) -> None:
    order = only(verifier.prefilled(1), SendOrder)
    verifier.tell(Release(1, 0, How.DROP))
    assert not verifier.blocks(order, (0.9,))
    assert verifier.loop.counts["block of a sequence that left"] == 1


def test_what_comes_for_who_is_gone_is_counted(verifier: Verifier) -> None:
    verifier.tell(
        Acknowledged(9, 0, 0),
        Release(9, 0, How.SETTLE),
        Prefilled(9, 0, 1),
        DrafterReady(1, 9, 0, 3),
    )
    assert sum(verifier.loop.counts.values()) == 4


def test_whatever_is_not_wanted_any_more_is_dropped(verifier: Verifier) -> None:
    verifier.prefilled(1, 2)
    actions = verifier.tell(Keep(frozenset({(1, 0), (2, 7), (9, 0)})))
    assert verifier.state(1) != "GONE"
    assert verifier.state(2) == "GONE", "another epoch of it is wanted"
    assert verifier.freed == [(2, 0)]
    assert only(actions, CloseAtDrafter).sequence == 2
    assert not of(actions, Released), "nobody waits to hear of it"
    assert verifier.loop.counts["unwanted sequence"] == 1


def test_a_drafter_that_forgot_a_sequence_gets_it_again(verifier: Verifier) -> None:
    order = only(verifier.prefilled(1), SendOrder)
    actions = verifier.tell(BlocksCame(order.order, [()], [0], ["unknown sequence"]))
    assert only(actions, OpenAtDrafter) == OpenAtDrafter(DRAFTER, 1, 0)
    assert only(actions, SendRows).start == 0
    actions = verifier.ended(only(actions, RunPass))
    said = rounds(actions)[0]
    assert (said.why_empty, said.drafter) == ("unknown sequence", DRAFTER)
    assert only(verifier.acknowledge(actions) + actions, SendOrder).drafter == DRAFTER, "again"
