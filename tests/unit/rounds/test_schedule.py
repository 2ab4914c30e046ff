from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.rounds.policy import Async, Columns, Fixed, Greedy, Off, Policy, Threshold
from dspark.rounds.schedule import Floats, StepSeconds, schedule, survival

GREEDY = Greedy()


def table(*steps_per_second: float) -> StepSeconds:
    """Steps per second at 1, 2, ... tokens."""
    seconds = 1.0 / np.array(steps_per_second)
    return lambda tokens: seconds[np.minimum(tokens.astype(int) - 1, len(seconds) - 1)]


def affine(fixed: float, per_token: float) -> StepSeconds:
    return lambda tokens: fixed + per_token * tokens


def lengths_of(
    confidence: list[list[float]], step: StepSeconds | None, policies: list[Policy] | None = None, **given: object
) -> list:
    blocks = [np.array(row) for row in confidence]
    widest = max(map(len, blocks))
    padded = np.full((len(blocks), widest), np.nan)
    for row, block in enumerate(blocks):
        padded[row, : len(block)] = block
    drafted = np.array([len(block) for block in blocks])
    return schedule(padded, drafted, policies or [GREEDY] * len(blocks), step, **given).tolist()


def test_survival_is_a_running_product_that_is_zero_beyond_each_block() -> None:
    alive = survival(np.array([[0.5, 0.5, 0.9], [0.8, np.nan, 0.9]]), np.array([2, 1]))
    assert alive.tolist() == [[0.5, 0.25, 0.0], [0.8, 0.0, 0.0]]


@pytest.mark.parametrize("second", [0.9, 0.0])
def test_early_stop_does_not_look_past_the_first_slot_in_the_paper_s_counterexample(second: float) -> None:
    # Appendix A: a search over all lengths returns 2 for 0.9 and 0 for 0.0, which gives the first token away.
    assert lengths_of([[0.8, second]], table(1.0, 0.5, 0.45)) == [0]


def test_slots_go_to_the_sequences_most_likely_to_use_them() -> None:
    assert lengths_of([[0.9, 0.9, 0.9], [0.2, 0.2, 0.2]], affine(1.0, 0.25)) == [3, 0]


def test_ties_go_to_earlier_slots_and_then_to_the_lower_row() -> None:
    # Two more tokens pay, a third never does: both go to first slots, although row 0's second slot ties with them.
    steps = table(*[1.0] * 5, 0.1)
    assert lengths_of([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]], steps) == [1, 1, 0]


def test_no_improvement_is_no_reason_to_verify() -> None:
    assert lengths_of([[1.0]], lambda tokens: tokens) == [0]


def test_a_candidate_without_survival_is_never_verified() -> None:
    assert lengths_of([[1.0, 0.0, 1.0]], affine(1.0, 1e-9)) == [1]


def test_threshold_stops_before_the_first_slot_strictly_below_it() -> None:
    rows = [[0.5, 0.4, 0.9]] * 4
    policies: list[Policy] = [Threshold(0.5), Threshold(0.4), Threshold(0.0), Threshold(0.6)]
    assert lengths_of(rows, None, policies) == [1, 3, 3, 0]


def test_fixed_takes_the_first_slots_and_off_none() -> None:
    assert lengths_of([[0.1, 0.1, 0.1]] * 3, None, [Fixed(2), Fixed(9), Off()]) == [2, 3, 0]


def test_without_a_cost_curve_everything_is_verified() -> None:
    assert lengths_of([[0.01, 0.01], [0.5]], None) == [2, 1]


def test_rows_with_other_policies_are_a_fixed_base_of_the_step() -> None:
    steps = table(*[1.0] * 6, 0.01)  # six tokens are free, the seventh is not
    alone = lengths_of([[0.9, 0.9, 0.9]], steps)
    beside = lengths_of([[0.9, 0.9, 0.9], [0.1, 0.1, 0.1]], steps, [GREEDY, Fixed(3)])
    assert (alone, beside) == ([3], [1, 3])


def test_tokens_of_the_step_that_belong_to_no_round_count_as_base() -> None:
    steps = table(*[1.0] * 6, 0.01)
    assert schedule(np.array([[0.9, 0.9]]), np.array([2]), [GREEDY], steps, base_tokens=4).tolist() == [1]


def test_async_gives_its_budget_to_the_slots_that_rank_first() -> None:
    rows, policies = [[0.9, 0.9, 0.1], [0.5, 0.9, 0.9]], [Async()] * 2
    assert lengths_of(rows, None, policies, budget=0) == [0, 0]
    assert lengths_of(rows, None, policies, budget=3) == [2, 1]
    assert lengths_of(rows, None, policies, budget=99) == [3, 3]
    assert lengths_of(rows, None, policies) == [3, 3], "without a past everything is verified"


def test_async_ties_go_to_earlier_slots_and_then_to_the_lower_row() -> None:
    assert lengths_of([[1.0, 1.0]] * 3, None, [Async()] * 3, budget=4) == [2, 1, 1]


def test_greedy_rows_see_what_async_rows_take_as_a_base_of_the_step() -> None:
    steps = table(*[1.0] * 6, 0.01)  # six tokens are free, the seventh is not
    rows, policies = [[0.9, 0.9, 0.9], [0.1, 0.1, 0.1]], [GREEDY, Async()]
    assert lengths_of(rows, steps, policies, budget=3) == [1, 3]
    assert lengths_of(rows, steps, policies, budget=0) == [3, 0]


def test_slots_go_where_a_token_is_worth_more() -> None:
    rows, step = [[0.8, 0.8], [0.8, 0.8]], affine(1.0, 0.35)
    assert lengths_of(rows, step, weights=np.array([1.0, 4.0])) == [0, 2]
    assert lengths_of(rows, None, [Async()] * 2, budget=2, weights=np.array([1.0, 4.0])) == [0, 2]


def test_promises_that_were_not_kept_weigh_less() -> None:
    rows, step = [[0.8, 0.8], [0.8, 0.8]], affine(1.0, 0.2)
    assert lengths_of(rows, step) == [2, 2]
    assert lengths_of(rows, step, trust=np.array([0.1, 1.0])) == [0, 2]


def test_columns_say_the_same_as_policies() -> None:
    policies: list[Policy] = [Off(), Fixed(2), Threshold(0.5), GREEDY, Async()]
    confidence, drafted = np.full((5, 3), 0.7), np.full(5, 3)
    step = affine(1.0, 0.1)
    named = schedule(confidence, drafted, policies, step, budget=1).tolist()
    assert named == schedule(confidence, drafted, Columns.of(policies), step, budget=1).tolist() == [0, 2, 3, 2, 1]


def test_a_long_walk_goes_on_past_the_candidates_that_are_rated_together() -> None:
    rows, drafted, policies = np.full((1000, 7), 0.999), np.full(1000, 7), [GREEDY] * 1000

    def cliff(tokens: Floats) -> Floats:
        return np.where(tokens <= 4500, 1.0, 100.0)

    assert schedule(rows, drafted, policies, affine(1.0, 1e-9)).sum() == 7000
    assert schedule(rows, drafted, policies, cliff).sum() == 3500


def test_nothing_drafted_is_nothing_verified() -> None:
    assert schedule(np.zeros((2, 0)), np.zeros(2, np.int64), [GREEDY, Fixed(3)], affine(1, 1)).tolist() == [0, 0]
    assert schedule(np.zeros((0, 0)), np.zeros(0, np.int64), [], None).tolist() == []


confidences = st.lists(
    st.lists(st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0])), min_size=0, max_size=4),
    min_size=1,
    max_size=4,
)
policies = st.sampled_from([GREEDY, GREEDY, GREEDY, Off(), Fixed(2), Threshold(0.5), Async(), Async()])
curves = st.lists(st.floats(0, 1), min_size=40, max_size=40)  # any shape at all: stairs and cliffs included


def curve(rises: list[float]) -> StepSeconds:
    seconds = 0.1 + np.cumsum(rises)
    return lambda tokens: seconds[tokens.astype(int)]


@settings(deadline=None, max_examples=300)
@given(confidences, curves, st.data())
def test_whether_a_slot_is_admitted_never_depends_on_anything_after_it(rows, rises, data) -> None:
    row = data.draw(st.integers(0, len(rows) - 1))
    slot = data.draw(st.integers(0, max(len(rows[row]) - 1, 0)))
    chosen = [data.draw(policies) for _ in rows]
    changed = [list(block) for block in rows]
    for later in range(slot + 1, len(changed[row])):
        changed[row][later] = data.draw(st.floats(0, 1))
    budget = data.draw(st.integers(0, 12))  # older than the draft
    weights = np.array([data.draw(st.sampled_from([0.5, 1.0, 3.0])) for _ in rows])
    given = {"budget": budget, "weights": weights}
    before = lengths_of(rows, curve(rises), chosen, **given) if any(rows) else [0] * len(rows)
    after = lengths_of(changed, curve(rises), chosen, **given) if any(rows) else [0] * len(rows)
    for earlier in range(slot + 1):
        assert (before[row] > earlier) == (after[row] > earlier)


def rate(confidence: Floats, lengths: tuple[int, ...], step: StepSeconds) -> float:
    alive = np.cumprod(confidence, axis=1)
    expected = len(lengths) + sum(alive[row, :length].sum() for row, length in enumerate(lengths))
    return float(expected / step(np.array([float(len(lengths) + sum(lengths))]))[0])


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), min_size=1, max_size=3),
    st.floats(0.01, 2),
    st.floats(0.01, 1),
    st.floats(0, 0.2),
)
def test_on_a_convex_curve_early_stop_finds_what_brute_force_finds(rows, fixed, linear, square) -> None:
    def step(tokens: Floats) -> Floats:
        return fixed + linear * tokens + square * tokens**2

    confidence = np.array(rows)
    best = max(rate(confidence, choice, step) for choice in product(range(4), repeat=len(rows)))
    found = tuple(lengths_of(rows, step))
    assert rate(confidence, found, step) == pytest.approx(best, rel=1e-9)
