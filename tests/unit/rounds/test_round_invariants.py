"""What `RoundLoop` promises of every round, R1 to R11, one by one. `test_lane_storms` asserts most
of them again."""

from dataclasses import replace

import numpy as np
import pytest

from dspark.rounds.events import (
    Acknowledged,
    Admit,
    BlocksCame,
    DrafterLost,
    GoneReason,
    Prefill,
    Release,
    Released,
    ReleaseMode,
    Report,
    RunPass,
    SendOrder,
    SendRows,
)
from dspark.rounds.plan import NO_CAP, BlockTerms, Plan, PlanKind, SequencePlan, prefixes
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


def test_r1_nothing_of_a_block_leaves_before_its_prefix_is_fixed() -> None:
    said = []
    for block in ((0.9, 0.9, 0.9), (0.1,), ()):
        verifier = Verifier(priced(0.5))
        first, _ = verifier.ordered(1), verifier.ordered(2, drafter=OTHER)
        actions, loop = verifier.blocks(first, block), verifier.loop
        said.append((actions, dict(loop.counts), loop.next_at()))
    assert said[0] == said[1] == said[2]
    assert said[0][0] == []


def test_r2_a_newer_plan_meets_the_next_order_only() -> None:
    verifier = Verifier(priced(0.5))
    order = verifier.ordered(1, 2)
    verifier.tell(priced(0.95, slots=1, cap=0))
    run = verifier.run(order, (0.9, 0.9), (0.9, 0.1))
    assert [row.prefix for row in run.rows] == [2, 1], "by the terms of the order"
    order = only(verifier.ended(run), SendOrder)
    assert [row.slots for row in order.rows] == [1, 1]
    verifier.tell(priced(0.0))
    run = verifier.run(order, (0.99,), (0.99,))
    assert [row.prefix for row in run.rows] == [0, 0], "a cap of 0"


def test_r2_a_weight_is_frozen_too() -> None:
    verifier = Verifier(replace(priced(0.5), terms=BlockTerms(PlanKind.PRICE, 2, 0.5, weight=2.0)))
    order = verifier.ordered(1)
    verifier.tell(priced(0.5))
    assert verifier.run(order, (0.3, 0.9)).rows[0].prefix == 2


@pytest.mark.parametrize("cap", [NO_CAP, 7, 3, 0])
@pytest.mark.parametrize("kind", PlanKind)
def test_r3_what_comes_after_a_slot_never_decides_about_it(kind: PlanKind, cap: int) -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        values = [0.0, 0.5, 1.0, float("nan"), -1.0] if rng.random() < 0.5 else rng.random(5)
        blocks = rng.choice(values, (4, 5))
        terms = [
            BlockTerms(
                kind, 5, float(rng.choice([0.0, 0.25, 0.5])), float(rng.choice([0.5, 1.0])), cap
            )
        ] * 4
        lengths = rng.integers(0, 6, 4)
        before = prefixes([block[:n] for block, n in zip(blocks, lengths, strict=True)], terms)
        assert sum(before) <= cap
        row, slot = int(rng.integers(0, 4)), int(rng.integers(0, 5))
        changed = blocks.copy()
        changed[row, slot:] = rng.choice(values, 5 - slot)
        after = prefixes([block[:n] for block, n in zip(changed, lengths, strict=True)], terms)
        if lengths[row] > slot:
            for earlier in range(1, slot + 1):
                assert (before[row] >= earlier) == (after[row] >= earlier)


def test_r3_a_prefix_is_the_longest_of_which_every_slot_reaches_the_price() -> None:
    terms = [
        BlockTerms(PlanKind.PRICE, 3, 0.5),
        BlockTerms(PlanKind.PRICE, 3, 0.5, weight=0.5),
        BlockTerms(PlanKind.PRICE, 3, 0.0),
    ]
    assert prefixes([(0.8, 0.625, 0.9)] * 3, terms) == [2, 0, 3]
    threshold, nothing = (
        BlockTerms(PlanKind.THRESHOLD, 3, 0.5),
        BlockTerms(PlanKind.PRICE, 3, float("inf")),
    )
    assert prefixes([(0.4, 0.9), (0.6, 0.4, 0.9)], [threshold] * 2) == [0, 1]
    assert prefixes([(0.9,), ()], [nothing, BlockTerms(PlanKind.OFF)]) == [0, 0]


def test_r3_a_cap_leaves_what_ranks_first_earlier_slots_before_later_ones() -> None:
    capped = [BlockTerms(PlanKind.PRICE, 3, 0.0, cap=4)] * 3
    assert prefixes([(0.9, 0.9, 0.9), (0.9, 0.5), (0.81, 1.0)], capped) == [2, 1, 1]
    assert prefixes([(1.0, 1.0), (1.0, 1.0), (1.0, 1.0)], capped) == [2, 1, 1], "tie: the lower row"
    two, one = ([BlockTerms(PlanKind.FIXED, 2, cap=cap)] * 2 for cap in (2, 1))
    assert prefixes([(1.0, 1.0), (1.0,)], two) == [1, 1], "and the earlier slot first"
    assert prefixes([(1.0, 0.1), (1.0, 0.9)], one) == [1, 0], "whatever follows"


def test_r3_pages_are_asked_for_oldest_first_and_cut_the_prefixes_of_the_others() -> None:
    verifier = Verifier(pages=3 * (PROMPT + 1) + 4)
    run = verifier.run(verifier.ordered(1, 2, 3), *[(1.0, 1.0, 1.0)] * 3)
    assert run.rows[0].prefix == 3
    assert only(verifier.said, Released).why is GoneReason.OUT_OF_PAGES, "taken by the oldest"
    assert [row.sequence for row in run.rows] == [1, 2]


@pytest.mark.parametrize("again", [True, False])
def test_r4_an_anchor_is_ordered_once(again: bool) -> None:
    verifier = Verifier(priced(cohorts=2), 2 * (PROMPT + 1))
    third = only(verifier.prefilled(3, drafter=0), RunPass)
    verifier.pages.total -= 1
    order = verifier.ordered(2)
    if again:  # an empty block uses the anchor up just as well
        verifier.tell(DrafterLost(DRAFTER))
        verifier.tell(replace(priced(cohorts=2), sequences={2: SequencePlan(drafter=OTHER)}))
    else:
        verifier.blocks(order, (0.9,))
    assert (verifier.state(2), verifier.state(3)) == ("IDLE", "SETTLING"), "no page is left"
    actions = verifier.ended(third)
    assert rounds(actions)[0].sequence == 3, "what was drawn for it is reported"
    assert only(actions, Released).why is GoneReason.OUT_OF_PAGES
    assert len(of(verifier.said, SendOrder)) == 1
    run = of(verifier.said, RunPass)[-1]
    assert (run.rows[0].sequence, run.rows[0].prefix) == (2, 0)
    verifier.acknowledge(verifier.said)
    verifier.pages.total += 10
    assert only(verifier.ended(run), SendOrder).rows[0].committed_len == PROMPT + 2, "the next is"


def test_r5_a_deadline_is_fixed_with_its_order() -> None:
    verifier = Verifier(replace(priced(), draft_s=1.0))
    first, _ = verifier.ordered(1), verifier.ordered(2, drafter=OTHER)
    assert verifier.loop.next_at() == 3.0, "three times what is expected"
    verifier.now = 1.0
    verifier.blocks(first, (0.9,))
    verifier.tell(replace(priced(), draft_s=9.0))
    assert verifier.loop.next_at() == 3.0
    assert len(only(verifier.too_late(), RunPass).rows) == 2


def test_r5_a_deadline_is_never_shorter_than_its_floor() -> None:
    verifier = Verifier(replace(priced(), draft_s=1e-6))
    verifier.prefilled(1)
    assert verifier.loop.next_at() == 0.5


def test_r6_what_is_drawn_for_whoever_settles_is_reported_before_it_is_released() -> None:
    verifier = Verifier(pages=2 * (PROMPT + 1))
    run = only(verifier.prefilled(1, 2, drafter=0), RunPass)
    assert not of(verifier.tell(Release(1, 0, ReleaseMode.SETTLE)), Released)
    actions = verifier.ended(run)  # the other one finds no page afterwards
    kinds = [type(each) for each in actions if isinstance(each, Report | Released)]
    assert kinds == [Report, Released]
    assert only(actions, Released) == Released(1, 0, 2)
    assert {each.sequence for each in rounds(actions)} == {1, 2}


def test_r6_the_youngest_reports_everything_before_it_makes_room() -> None:
    verifier = Verifier(pages=2 * (PROMPT + 1))
    actions = verifier.past(verifier.prefilled(1, 2, drafter=0))
    assert {each.sequence for each in rounds(actions)} == {1, 2}
    gone = only(actions, Released)
    assert (gone.sequence, gone.rounds) == (2, 2)


def test_r6_one_makes_room_at_a_time_and_the_others_wait() -> None:
    verifier = Verifier(priced(cohorts=2), 2 * (PROMPT + 1) - 1)
    run = only(verifier.prefilled(5, drafter=0), RunPass)
    verifier.prefilled(2, 4, drafter=0)
    assert [verifier.state(number) for number in (2, 4, 5)] == ["IDLE", "IDLE", "SETTLING"]
    verifier.pages.total += 1
    actions = verifier.ended(run)
    assert only(actions, Released).sequence == 5
    assert [row.sequence for row in only(actions, RunPass).rows] == [2, 4]


@pytest.mark.parametrize("window", [0, 1, 2, 5])
@pytest.mark.parametrize("drafter", [0, DRAFTER])
def test_r8_no_round_begins_more_than_the_window_ahead(window: int, drafter: int) -> None:
    verifier = Verifier(priced(window=window))
    actions = verifier.prefilled(1, drafter=drafter)  # its prefill is acknowledged
    begun = 0
    while verifier.state(1) != "HELD":
        if drafter:
            actions = verifier.blocks(only(actions, SendOrder), (0.9,))
        begun += 1
        actions = verifier.past(actions)
    assert begun == window + 1
    assert len(verifier.tell(Acknowledged(1, 0, 1))) == 1, "one more"
    assert not verifier.tell(Acknowledged(1, 0, 0)), "an older one takes nothing back"
    assert not verifier.tell(Acknowledged(1, 0, 99))
    assert verifier.loop.counts["acknowledgement of an unreported round"] == 1


def test_r8_a_narrower_window_holds_at_the_next_round() -> None:
    verifier = Verifier(priced(window=5))
    actions = verifier.past(verifier.prefilled(1, drafter=0))
    verifier.tell(priced(window=0))
    verifier.past(actions)
    assert verifier.state(1) == "HELD"


def test_r9_an_epoch_that_was_seen_is_not_admitted_again() -> None:
    verifier = Verifier()
    verifier.prefilled(1, drafter=0, epoch=3)
    assert only(verifier.tell(Admit(1, 4, PROMPT, 20)), Released).why is GoneReason.STALE_EPOCH, (
        "is here"
    )
    assert not verifier.tell(Admit(1, 3, PROMPT, 20)), "who is told of twice is not said to be gone"
    verifier.tell(Release(1, 3, ReleaseMode.DROP))
    for epoch in (2, 3):
        assert (
            only(verifier.tell(Admit(1, epoch, PROMPT, 20)), Released).why is GoneReason.STALE_EPOCH
        )
    assert only(verifier.tell(Admit(1, 4, PROMPT, 20)), Prefill).epoch == 4


def test_r10_what_the_coordinator_thinks_of_a_drafter_never_stops_orders_to_it() -> None:
    verifier = Verifier()
    actions = verifier.prefilled(1, drafter=0)
    verifier.tell(by(DRAFTER))
    order = only(verifier.past(actions), SendOrder)
    verifier.hold_rows = True  # the other one never gets its rows
    for _ in range(2):
        verifier.tell(by(OTHER))
        run = verifier.run(order, (0.9,))
        verifier.acknowledge(verifier.said)
        order = only(verifier.ended(run, accepted=1), SendOrder)
        assert order.drafter == DRAFTER


def test_r11_few_missing_rows_go_with_the_next_order() -> None:
    verifier = Verifier(priced(window=9))
    order = verifier.ordered(1)
    actions = verifier.tell(BlocksCame(order.order, [(1.0,)], [PROMPT - 4]))
    assert not of(actions, SendRows)
    order = only(verifier.past(actions), SendOrder)
    assert (order.rows[0].first_row, order.rows[0].committed_len) == (PROMPT - 4, PROMPT + 2)


def test_a_plan_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="cohorts is 3"):
        Plan(cohorts=3)
    with pytest.raises(ValueError, match="window is -1"):
        Plan(window=-1)
