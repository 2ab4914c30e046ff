"""What a drafter is sent of a sequence through `RoundLoop`, and when another one takes over."""

import pytest

from dspark.rounds.events import (
    BlocksCame,
    CloseAtDrafter,
    DrafterEvent,
    DrafterLost,
    DrafterReady,
    OpenAtDrafter,
    RunPass,
    SendOrder,
    SendRows,
)
from dspark.rounds.orders import OrderTimeouts
from dspark.rounds.plan import Plan
from tests.unit.rounds.verifier import (
    DRAFTER,
    OTHER,
    PROMPT,
    Verifier,
    by,
    of,
    only,
    priced,
    rounds,
)

# As far ahead as they like.
PLAIN, PRICED = Plan(window=1 << 20), priced(window=1 << 20)


@pytest.fixture
def verifier() -> Verifier:
    return Verifier()


def test_no_row_is_sent_before_drafts_are_planned_and_then_all_in_bulk() -> None:
    verifier = Verifier(PLAIN)
    verifier.hold_rows = True
    actions = verifier.prefilled(1, room=500)
    for _ in range(100):
        actions = verifier.past(actions)
        assert rounds(actions)[0].why_empty == "off"
    assert {type(each) for each in verifier.said}.isdisjoint({OpenAtDrafter, SendRows})
    verifier.tell(PRICED)
    actions = verifier.past(actions)
    assert only(actions, OpenAtDrafter) == OpenAtDrafter(DRAFTER, 1, 0)
    assert only(actions, SendRows) == SendRows(DRAFTER, 1, 0, 0, PROMPT + 101)
    actions = verifier.past(actions)
    assert rounds(actions)[0].why_empty == "rows missing"
    verifier.tell(DrafterReady(DRAFTER, 1, 0, PROMPT + 101))
    assert only(verifier.past(actions), SendOrder).rows[0].first_row == PROMPT + 101


def test_few_rows_go_along_with_the_first_order_that_is_planned() -> None:
    verifier = Verifier(PLAIN, waits=OrderTimeouts(inline_rows=PROMPT + 1))
    run = only(verifier.prefilled(1), RunPass)
    verifier.tell(PRICED)
    actions = verifier.ended(run)
    assert only(actions, OpenAtDrafter) == OpenAtDrafter(DRAFTER, 1, 0)
    assert only(actions, SendOrder).rows[0].first_row == 0


def test_a_long_plain_stretch_is_caught_up_with_in_bulk() -> None:
    verifier = Verifier(PRICED)
    run = verifier.drafted(0.9, room=500)
    verifier.hold_rows = True
    verifier.tell(PLAIN)
    actions = verifier.ended(run)
    for _ in range(100):
        actions = verifier.past(actions)
        assert not of(actions, SendRows)
    verifier.tell(PRICED)
    assert only(verifier.past(actions), SendRows) == SendRows(DRAFTER, 1, 0, PROMPT, PROMPT + 102)


def test_plain_rounds_say_that_rows_are_missing_until_they_arrive() -> None:
    """The plan that asked for them may be over by then."""
    verifier = Verifier(PRICED)
    verifier.hold_rows = True
    actions = verifier.prefilled(1)
    verifier.tell(PLAIN)
    for _ in range(3):
        actions = verifier.past(actions)
        assert rounds(actions)[0].why_empty == "rows missing"
    verifier.tell(DrafterReady(DRAFTER, 1, 0, PROMPT))
    assert rounds(verifier.past(verifier.past(actions)))[0].why_empty == "off"


@pytest.mark.parametrize("tried", [False, True])
def test_plain_rounds_name_another_drafter_and_send_it_nothing(tried: bool) -> None:
    verifier = Verifier(PRICED if tried else PLAIN)
    run = verifier.drafted(0.9) if tried else only(verifier.prefilled(1), RunPass)
    assert verifier.tell(by(OTHER, PLAIN)) == [CloseAtDrafter(DRAFTER, 1, 0)] * tried
    actions = verifier.ended(run)
    verifier.tell(PRICED)
    actions = verifier.past(actions)
    assert only(actions, OpenAtDrafter).drafter == only(actions, SendRows).drafter == OTHER
    opened = [each.drafter for each in of(verifier.said, OpenAtDrafter)]
    assert opened == [DRAFTER] * tried + [OTHER]


def test_no_row_is_sent_for_a_last_token() -> None:
    verifier = Verifier(PLAIN)
    run = only(verifier.prefilled(1, room=3), RunPass)
    verifier.tell(PRICED)
    actions = verifier.ended(run)
    assert not of(actions, OpenAtDrafter)
    assert rounds(verifier.past(actions))[0].why_empty == "last token"


def test_a_drafter_that_was_lost_gets_nothing_until_it_is_named_again() -> None:
    """It leaves an empty block, and nobody is asked for that anchor again."""
    verifier = Verifier(PRICED)
    verifier.ordered(1)
    actions = verifier.tell(DrafterLost(DRAFTER))
    assert only(actions, DrafterEvent) == DrafterEvent(DRAFTER, "lost")
    assert only(actions, RunPass).rows[0].prefix == 0
    for why in ("drafter lost", "no drafter"):
        actions = verifier.past(actions)
        assert rounds(actions)[0].why_empty == why
        assert not of(actions, OpenAtDrafter)
    assert only(verifier.tell(by(DRAFTER, PRICED)), OpenAtDrafter).drafter == DRAFTER


def test_rows_of_a_late_order_are_sent_again_once_its_drafter_replied() -> None:
    """Whether they arrived is not known, and behind a gap no row is of use."""
    verifier = Verifier(PRICED)
    late = only(verifier.ended(verifier.drafted(0.9)), SendOrder)
    assert late.rows[0].first_row == PROMPT
    actions = verifier.too_late()
    for _ in range(3):
        actions = verifier.past(actions)
        assert not of(actions, SendOrder), "the drafter owes a reply"
    verifier.blocks(late, (0.9,))
    assert only(verifier.past(actions), SendOrder).rows[0].first_row == PROMPT


def test_another_drafter_takes_over_between_rounds_once_it_has_the_rows(verifier: Verifier) -> None:
    order = verifier.ordered(1)
    verifier.hold_rows = True
    said = verifier.tell(by(OTHER))
    assert said == [OpenAtDrafter(OTHER, 1, 0), SendRows(OTHER, 1, 0, 0, PROMPT)]
    order = only(verifier.ended(verifier.run(order, (0.9,))), SendOrder)
    assert order.drafter == DRAFTER, "the old one drafts until the new one can"
    assert not of(verifier.tell(DrafterReady(OTHER, 1, 0, PROMPT)), CloseAtDrafter)
    verifier.acknowledge(verifier.said)
    actions = verifier.ended(verifier.run(order, (0.9,)))
    assert only(actions, CloseAtDrafter) == CloseAtDrafter(DRAFTER, 1, 0)
    order = only(actions, SendOrder)
    assert (order.drafter, order.rows[0].first_row) == (OTHER, PROMPT)


@pytest.mark.parametrize("why", ["", "unknown sequence"])
def test_a_drafter_that_lost_rows_gets_none_where_another_takes_over(
    why: str, verifier: Verifier
) -> None:
    order = verifier.ordered(1)
    verifier.hold_rows = True
    verifier.tell(by(OTHER))
    actions = verifier.tell(BlocksCame(order.order, [(0.9,)], [4], [why]))
    assert not of(actions, SendRows)
    assert not of(actions, OpenAtDrafter)
    assert len(of(actions, CloseAtDrafter)) == (not why), "it may have forgotten the sequence"
    verifier.tell(DrafterReady(OTHER, 1, 0, PROMPT))
    assert only(verifier.past(actions), SendOrder).drafter == OTHER


@pytest.mark.parametrize("drafter", [0, OTHER])
def test_a_drafter_that_was_closed_behind_its_order_is_sent_nothing(
    drafter: int, verifier: Verifier
) -> None:
    order = verifier.ordered(1)
    assert verifier.tell(by(drafter, PLAIN)) == [CloseAtDrafter(DRAFTER, 1, 0)]
    actions = verifier.tell(BlocksCame(order.order, [(0.9,)], [4]))
    assert [type(each) for each in actions] == [RunPass]


def test_missing_rows_at_a_drafter_empty_the_block_and_are_sent_in_bulk(verifier: Verifier) -> None:
    order = verifier.ordered(1)
    actions = verifier.tell(BlocksCame(order.order, [(0.9,)], [4]))
    assert only(actions, SendRows) == SendRows(DRAFTER, 1, 0, 4, PROMPT)
    assert only(actions, RunPass).rows[0].prefix == 0
    verifier.tell(by(OTHER))
    (said,) = rounds(verifier.past(actions))
    assert (said.why_empty, said.drafter) == ("rows lost", DRAFTER), "whoever is chosen meanwhile"


def test_a_drafter_that_forgot_a_sequence_gets_it_again(verifier: Verifier) -> None:
    order = verifier.ordered(1)
    actions = verifier.tell(BlocksCame(order.order, [()], [0], ["unknown sequence"]))
    assert only(actions, OpenAtDrafter) == OpenAtDrafter(DRAFTER, 1, 0)
    assert only(actions, SendRows).start == 0
    actions = verifier.past(actions)
    (said,) = rounds(actions)
    assert (said.why_empty, said.drafter) == ("unknown sequence", DRAFTER)
    assert only(verifier.acknowledge(actions) + actions, SendOrder).drafter == DRAFTER, "again"
