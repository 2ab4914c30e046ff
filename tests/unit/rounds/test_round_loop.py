"""Every row of the table of a sequence at its verifier, through `RoundLoop`."""

import pytest

from dspark.rounds.events import (
    Acknowledged,
    Admit,
    BlocksCame,
    CallBackPrefill,
    CloseAtDrafter,
    DrafterEvent,
    DrafterReady,
    GoneReason,
    KeepSequences,
    OpenAtDrafter,
    PassEnded,
    Prefill,
    Prefilled,
    PrefillRefused,
    Release,
    Released,
    ReleaseMode,
    RunPass,
    SendOrder,
    SendRows,
    Told,
)
from dspark.rounds.orders import MAX_OPEN_ORDERS
from dspark.rounds.plan import BlockTerms, Plan, PlanKind
from dspark.rounds.state import Event, SequenceState, State, UnlistedEvent
from dspark.types import FormEffect, Verdict
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


def test_an_admitted_sequence_is_prefilled_and_sends_its_drafter_its_rows_in_bulk(
    verifier: Verifier,
) -> None:
    verifier.hold_rows = True
    actions = verifier.tell(Admit(1, 0, PROMPT, 20, drafter=DRAFTER))
    assert actions == [Prefill(1, 0), OpenAtDrafter(DRAFTER, 1, 0)]
    assert verifier.state(1) == "PREFILL"
    actions = verifier.tell(Prefilled(1, 0, 7))
    (said,) = rounds(actions)
    assert (said.round, said.committed_before, said.tokens) == (0, PROMPT, (7,))
    assert only(actions, SendRows) == SendRows(DRAFTER, 1, 0, 0, PROMPT)


def test_a_prompt_without_pages_is_gone(verifier: Verifier) -> None:
    verifier.tell(Admit(1, 0, PROMPT, 20, drafter=DRAFTER))
    actions = verifier.tell(PrefillRefused(1, 0))
    assert only(actions, Released) == Released(1, 0, 0, GoneReason.NO_PAGES)
    assert only(actions, CloseAtDrafter).drafter == DRAFTER
    assert verifier.state(1) == "GONE"
    assert verifier.freed == [(1, 0)]


@pytest.mark.parametrize("drawn", [True, False])
def test_a_prompt_that_settles_is_called_back_and_its_anchor_reported_if_it_was_drawn(
    drawn: bool, verifier: Verifier
) -> None:
    verifier.tell(Admit(1, 0, PROMPT, 20))
    assert only(verifier.tell(Release(1, 0, ReleaseMode.SETTLE)), CallBackPrefill).sequence == 1
    assert verifier.state(1) == "SETTLING"
    actions = verifier.tell(Prefilled(1, 0, 7) if drawn else PrefillRefused(1, 0))
    assert len(rounds(actions)) == drawn
    assert only(actions, Released) == Released(1, 0, int(drawn))


# Between rounds.


def test_an_order_carries_the_rows_since_the_last_one_the_anchor_and_the_slots(
    verifier: Verifier,
) -> None:
    order = verifier.ordered(1)
    (row,) = order.rows
    assert (row.committed_len, row.anchor, row.slots, row.first_row) == (PROMPT + 1, 7, 3, PROMPT)
    run = verifier.run(order, (0.9, 0.9, 0.9))
    (row,) = only(verifier.ended(run, accepted=2), SendOrder).rows
    assert (row.committed_len, row.first_row, row.round) == (PROMPT + 4, PROMPT, 2)


@pytest.mark.parametrize(
    ("tokens", "form", "forced"),
    [
        ((3, 99, 5), FormEffect((True, True, True), True), (True, True)),
        ((3, 4, 5), FormEffect((False, True), True), (False, True, False)),
        ((3, 4, 5), FormEffect((False, False, False), True), ()),
    ],
)
def test_what_forms_did_is_reported_of_the_tokens_that_are_said(
    tokens: tuple[int, ...], form: FormEffect, forced: tuple[bool, ...], verifier: Verifier
) -> None:
    run = verifier.drafted(0.9, 0.9, 0.9)
    (said,) = rounds(verifier.tell(PassEnded(run.number, [Verdict(tokens, form=form)])))
    assert (said.forced, said.forbidden) == (forced, True)


def test_a_block_that_a_pass_found_unsound_is_told_of_as_an_empty_one(verifier: Verifier) -> None:
    run = verifier.drafted(0.9, 0.9, 0.9)
    actions = verifier.tell(PassEnded(run.number, [Verdict((5,), spoilt=True)]))
    (said,) = rounds(actions)
    assert (said.tokens, said.why_empty) == ((5,), "invalid")
    assert (said.accepted, said.verified, said.confidence) == (0, 0, ())
    assert only(actions, SendOrder).rows[0].committed_len == PROMPT + 2


@pytest.mark.parametrize(
    ("room", "drafter", "plan", "why"),
    [
        (20, DRAFTER, Plan(BlockTerms(PlanKind.OFF, 3), window=2), "off"),
        (20, DRAFTER, Plan(BlockTerms(PlanKind.PRICE, 0), window=2), "off"),
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
    assert rounds(verifier.past(actions))[0].why_empty == why


# Orders.


def test_a_block_is_clamped_to_the_slots_of_its_order() -> None:
    assert Verifier(priced(slots=2)).drafted(*[1.0] * 5).rows[0].prefix == 2
    order = Verifier(priced(slots=3)).ordered(1, room=3)
    assert order.rows[0].slots == 1, "the prefill took one, and the target's own token takes one"


@pytest.mark.parametrize(
    ("told", "counted"),
    [
        (BlocksCame(77, [(0.9,)], [PROMPT]), "late block"),
        (Acknowledged(9, 0, 0), "acknowledgement of a gone sequence"),
        (Release(9, 0, ReleaseMode.SETTLE), "release of a gone sequence"),
        (Prefilled(9, 0, 1), "prefill of a gone sequence"),
        (DrafterReady(1, 9, 0, 3), "rows of a gone sequence"),
    ],
)
def test_what_comes_for_nobody_is_counted_by_its_kind(
    told: Told, counted: str, verifier: Verifier
) -> None:
    verifier.ordered(1)
    assert not verifier.tell(told)
    assert verifier.state(1) == "ORDERED"
    assert verifier.loop.counts == {counted: 1}


def test_a_late_block_is_an_empty_one_and_its_drafter_is_asked_nothing_until_it_came(
    verifier: Verifier,
) -> None:
    order = verifier.ordered(1)
    actions = verifier.too_late()
    assert only(actions, DrafterEvent) == DrafterEvent(DRAFTER, "late")
    assert only(actions, RunPass).rows[0].prefix == 0
    for why in ("late", "drafter late"):
        actions = verifier.past(actions)
        assert rounds(actions)[0].why_empty == why
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
    verifier.ordered(1)
    verifier.too_late()
    assert only(verifier.too_late(), DrafterEvent) == DrafterEvent(DRAFTER, "silent")
    assert verifier.loop.next_at() is None


# Passes.


def test_a_cohort_waits_for_all_of_its_blocks(verifier: Verifier) -> None:
    first, second = verifier.ordered(1), verifier.ordered(2, drafter=OTHER)
    assert not of(verifier.blocks(second, (0.9,)), RunPass)
    run = verifier.run(first, (0.9,))
    assert [row.answer for row in run.rows] == [first, second]


def test_a_row_names_the_answer_with_its_block_and_its_place_there_until_it_is_judged() -> None:
    verifier = Verifier(priced(window=0))
    order = verifier.ordered(1, 2)
    run = verifier.run(order, (0.9,), (0.9,))
    assert [(row.answer, row.place) for row in run.rows] == [(order, 0), (order, 1)]
    verifier.ended(run)
    assert verifier.loop.sequence(1).answer is None, "else it stays while the sequence waits"


def test_a_cohort_waits_for_acknowledgements_as_long_as_for_a_block_and_no_longer() -> None:
    verifier = Verifier(priced(window=0))
    verifier.past(verifier.prefilled(1, 2, drafter=0))
    assert not of(verifier.tell(Acknowledged(1, 0, 1)), RunPass)
    assert verifier.loop.next_at() == 0.5
    assert [row.sequence for row in only(verifier.too_late(), RunPass).rows] == [1]
    assert verifier.loop.next_at() is None


def test_two_cohorts_take_turns_by_the_number_of_a_sequence() -> None:
    verifier = Verifier(priced(cohorts=2))
    order = verifier.ordered(1, 2, 3, 4)
    runs = of(verifier.blocks(order, *[(0.9,)] * 4), RunPass)
    assert [[row.sequence for row in run.rows] for run in runs] == [[2, 4], [1, 3]]
    order = only(verifier.ended(runs[0]), SendOrder)
    assert [row.sequence for row in order.rows] == [2, 4]


def test_a_verdict_is_reported_with_all_that_was_drafted() -> None:
    verifier = Verifier(priced(0.5))
    run = verifier.drafted(0.9, 0.1, 0.7)
    (said,) = rounds(verifier.ended(run, accepted=1))
    assert (said.round, said.committed_before, said.tokens) == (1, PROMPT + 1, (3, 3))
    assert (said.accepted, said.verified, tuple(said.confidence)) == (1, 1, (0.9, 0.1, 0.7))
    assert said.drafter == DRAFTER


@pytest.mark.parametrize(("token", "room", "kept"), [(99, 20, 1), (3, 3, 2)])
def test_a_stop_token_or_the_length_holds_it(token: int, room: int, kept: int) -> None:
    verifier = Verifier(priced(slots=3))
    run = verifier.drafted(0.9, 0.9, room=room)
    actions = verifier.ended(run, accepted=1, token=token)
    assert len(rounds(actions)[0].tokens) == kept
    assert verifier.state(1) == "HELD"
    assert not of(verifier.acknowledge(actions), RunPass), "its answer is full"


def test_whoever_could_not_be_judged_leaves_and_the_others_go_on() -> None:
    verifier = Verifier(priced(slots=0))
    run = only(verifier.prefilled(1, 2, 3), RunPass)
    verifier.tell(Release(3, 0, ReleaseMode.SETTLE))
    actions = verifier.tell(PassEnded(run.number, [Verdict((4, 5)), None, None]))
    assert [each.sequence for each in rounds(actions)] == [1]
    gone = {each.sequence: each for each in of(actions, Released)}
    assert (gone[2].why, gone[2].rounds) == (GoneReason.FAILED, 1)
    assert gone[3].why is None, "it was to leave anyhow"
    assert {2, 3} <= {sequence for sequence, _ in verifier.freed}
    run = only(verifier.acknowledge(actions) or actions, RunPass)
    assert [row.sequence for row in run.rows] == [1]
    actions = verifier.tell(PassEnded(run.number, [None]))
    assert actions == [Released(1, 0, 2, GoneReason.FAILED)], "and no report"


def test_a_prefix_is_cut_to_the_pages_there_are() -> None:
    assert Verifier(pages=PROMPT + 2).drafted(0.9, 0.9, 0.9).rows[0].prefix == 1


# Leaving.


@pytest.mark.parametrize("state", ["IDLE", "ORDERED", "READY", "HELD"])
def test_between_passes_settling_is_leaving(state: str) -> None:
    verifier, told = Verifier(priced(window=0)), []
    order = verifier.ordered(1)
    if state == "READY":
        verifier.prefilled(2, drafter=OTHER)
        verifier.blocks(order, (0.9,))
    elif state != "ORDERED":
        run = verifier.run(order, ())
        if state == "HELD":
            verifier.ended(run)
        else:  # nobody rests there: who is told to settle together with the verdict is
            told.append(PassEnded(run.number, [Verdict((3,))]))
    assert verifier.state(1) == ("RUNNING" if told else state)
    assert only(verifier.tell(*told, Release(1, 0, ReleaseMode.SETTLE)), Released).why is None
    assert verifier.state(1) == "GONE"


def test_dropped_it_is_gone_at_once_and_its_pages_when_its_pass_is_over(verifier: Verifier) -> None:
    run = only(verifier.prefilled(1, drafter=0), RunPass)
    verifier.tell(Release(1, 0, ReleaseMode.DROP))
    assert verifier.state(1) == "GONE"
    assert verifier.freed == []
    assert not rounds(verifier.ended(run))
    assert verifier.freed == [(1, 0)]
    assert verifier.loop.counts["verdict of a dropped sequence"] == 1


def test_a_block_that_comes_for_who_left_is_counted(verifier: Verifier) -> None:
    order = verifier.ordered(1)
    verifier.tell(Release(1, 0, ReleaseMode.DROP))
    assert not verifier.blocks(order, (0.9,))
    assert verifier.loop.counts["block of a sequence that left"] == 1


def test_whatever_is_not_wanted_any_more_is_dropped(verifier: Verifier) -> None:
    verifier.prefilled(1, 2)
    actions = verifier.tell(KeepSequences(frozenset({(1, 0), (2, 7), (9, 0)})))
    assert verifier.state(1) != "GONE"
    assert verifier.state(2) == "GONE", "another epoch of it is wanted"
    assert verifier.freed == [(2, 0)]
    assert only(actions, CloseAtDrafter).sequence == 2
    assert not of(actions, Released), "nobody waits to hear of it"
    assert verifier.loop.counts["unwanted sequence"] == 1
