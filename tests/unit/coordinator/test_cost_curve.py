import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.scheduling.cost_curve import CostCurve, convex_fit
from coordinator.scheduling.running_fit import Line, Running
from coordinator.scheduling.step_cost import DraftCost, StepCost


@settings(deadline=None)
@given(st.lists(st.floats(1e-4, 1.0), min_size=2, max_size=12))
def test_the_fit_is_convex_never_falls_and_keeps_the_mean(seconds: list[float]) -> None:
    x = np.cumsum(np.arange(1, len(seconds) + 1, dtype=np.float64))
    fit = convex_fit(x, np.array(seconds))
    slopes = np.diff(fit) / np.diff(x)
    assert (slopes >= -1e-12).all()
    assert (np.diff(slopes) >= -1e-9).all()
    assert fit.mean() == pytest.approx(np.mean(seconds))


def test_a_curve_that_is_convex_already_is_left_alone() -> None:
    x = np.array([1.0, 2.0, 4.0, 8.0])
    y = np.array([1.0, 1.5, 3.0, 9.0])
    assert convex_fit(x, y) == pytest.approx(y)


def test_a_stair_becomes_a_slope() -> None:
    fit = convex_fit(np.arange(1.0, 7.0), np.array([1.0, 1.0, 1.0, 2.0, 2.0, 2.0]))
    assert fit[2] < fit[3]
    assert (np.diff(fit, 2) >= -1e-12).all()


def test_lookup_interpolates_in_both_directions_and_goes_on_beyond_the_grid() -> None:
    curve = CostCurve([1, 3], [100, 200], [1.0, 2.0, 3.0, 6.0])
    assert curve.seconds(2, 100) == pytest.approx(2.0)
    assert curve.seconds(2, 150) == pytest.approx(3.0)
    assert curve.seconds(5, 100) == pytest.approx(5.0)
    assert curve.seconds(2, 9000) == pytest.approx(4.0)


def test_one_context_and_one_point_are_enough() -> None:
    assert CostCurve([4], [128], [0.5]).seconds(9, 1) == 0.5


@pytest.mark.parametrize(
    "grid",
    [([], [1], []), ([1, 2], [1], [1.0]), ([2, 1], [1], [1.0, 1.0]), ([1], [1], [0.0]), ([1], [1], [float("nan")])],
)
def test_a_malformed_grid_is_refused(grid) -> None:
    with pytest.raises(ValueError, match="must"):
        CostCurve(*grid)


def test_the_correction_follows_what_steps_really_take_and_one_stall_moves_it_little() -> None:
    curve = CostCurve([1, 10], [10], [1.0, 2.0])
    for _ in range(100):
        curve.observe(1, 10, 1.0)
    curve.observe(1, 10, 100.0)
    assert curve.seconds(1, 10) < 1.1
    for _ in range(2000):
        curve.observe(1, 10, 3.0)
    assert curve.seconds(1, 10) == pytest.approx(3.0)
    assert curve.seconds(10, 10) == pytest.approx(6.0)  # other sizes were not seen: in proportion


def test_the_slope_in_force_is_the_live_one() -> None:
    curve = CostCurve([1, 5], [10], [10.0, 11.0])  # measured: 0.25 a token; live: 6 and 8, 0.5 a token
    for _ in range(400):
        curve.observe(1, 10, 6.0)
        curve.observe(5, 10, 8.0)
    assert curve.seconds(1, 10) == pytest.approx(6.0, rel=0.05)
    step = curve.column(10)(np.array([1.0, 5.0]))
    assert step[1] - step[0] == pytest.approx(2.0, rel=0.2)


def test_the_stairs_are_what_was_measured_and_never_fall() -> None:
    curve = CostCurve([1, 2, 3, 4], [10], [1.0, 3.0, 2.0, 4.0])
    assert curve.stairs(10)(np.array([1.0, 2.0, 3.0, 4.0])) == pytest.approx([1.0, 2.5, 2.5, 4.0])


def test_a_line_without_spread_is_in_proportion_and_with_it_is_fitted() -> None:
    line = Line(credit=0)
    for _ in range(50):
        line.observe(2.0, 1.0)
    assert line.at(4.0) == pytest.approx(2.0)
    for _ in range(400):
        line.observe(2.0, 1.0)
        line.observe(4.0, 1.2)
    assert line.at(4.0) == pytest.approx(1.2, rel=0.05)


def test_a_draft_costs_by_its_slots_as_soon_as_different_lengths_were_seen() -> None:
    cost = DraftCost(CostCurve([1, 8], [10], [0.004, 0.008]), block_size=8)
    assert cost.seconds(1, 10, 8) == pytest.approx(0.004)
    for _ in range(200):
        cost.observe(1, 10, 8, 0.006)
        cost.observe(1, 10, 4, 0.005)
    assert cost.seconds(1, 10, 8) == pytest.approx(0.006, rel=0.05)
    assert cost.seconds(1, 10, 4) == pytest.approx(0.005, rel=0.05)
    assert cost.seconds(8, 10, 8) == pytest.approx(0.012, rel=0.05)
    assert cost.seconds(0, 10, 8) == 0.0


def test_a_draft_without_a_curve_is_known_from_what_passes_took() -> None:
    cost = DraftCost(None, block_size=4)
    assert cost.seconds(3, 10, 4) == 0.0
    cost.observe(3, 10, 4, 0.02)
    assert cost.seconds(3, 10, 4) == pytest.approx(0.02)


def test_a_round_costs_its_draft_its_verification_and_its_overheads() -> None:
    assert StepCost(None).of_round(10, 0.5) is None
    cost = StepCost(CostCurve([1, 10], [10], [1.0, 10.0]))
    cost.speculative.verify_hops.observe(0.1)
    cost.speculative.rest.observe(0.15)
    step = cost.of_round(10, 0.5)
    assert step is not None
    assert step(np.array([4.0]))[0] == pytest.approx(4.75)
    assert cost.of_plain_round(4.0, 10) == pytest.approx(4.25)
    cost.plain.verify_hops.observe(0.05)
    assert cost.of_plain_round(4.0, 10) == pytest.approx(4.05)


def _stretches(cost: StepCost, drafted_s: float, calm_s: float, turns: int) -> None:
    """Steps among drafted ones and in plain stretches, by turns; seconds a token."""
    for _ in range(turns):
        for _ in range(20):
            cost.observe(4.0, 10, 4.0 * drafted_s, 4)
        for _ in range(40):
            cost.observe(4.0, 10, 4.0 * calm_s, 4, calm=True)


def _both(cost: StepCost) -> tuple[float, float]:
    """Of 4 tokens: a drafted round, and a plain one."""
    step = cost.of_round_measured(10, 0.0, 4)
    assert step is not None
    return float(step(np.array([4.0]))[0]), cost.of_plain_round(4.0, 10, 4)


def test_calm_steps_are_costed_apart() -> None:
    cost = StepCost(CostCurve([1, 10], [10], [1.0, 10.0]))
    assert _both(cost) == pytest.approx((4.0, 4.0))
    _stretches(cost, drafted_s=2.0, calm_s=1.2, turns=8)
    assert _both(cost) == pytest.approx((8.0, 4.8), rel=0.1)


@pytest.mark.parametrize("calm", [False, True])
def test_a_machine_that_slows_down_slows_both_kinds(calm: bool) -> None:
    cost = StepCost(CostCurve([1, 10], [10], [1.0, 10.0]))
    _stretches(cost, drafted_s=2.0, calm_s=1.2, turns=8)
    for _ in range(400):
        cost.observe(4.0, 10, 4.0 * (2.4 if calm else 4.0), 4, calm=calm)
    assert _both(cost) == pytest.approx((16.0, 9.6), rel=0.15)


@pytest.mark.parametrize(("speed", "calm"), [(1.0, False), (1.0, True), (1.5, False)])
@pytest.mark.parametrize("prompt_ms", [0.02, 0.1, 0.2])
def test_prompts_that_ride_along_leave_the_price_of_verified_tokens_alone(
    prompt_ms: float, speed: float, calm: bool
) -> None:
    """A verified token takes 0.1 ms, one of a prompt less, as much, or more."""
    cost, draw = StepCost(CostCurve([1, 101], [10], [0.010, 0.020])), random.Random(3)

    def takes(tokens: int, ridden: int) -> float:
        return speed * (0.0099 + 1e-4 * tokens + 1e-3 * prompt_ms * ridden)

    for _ in range(600):
        tokens, ridden = draw.randint(20, 60), draw.choice([0, 30, 60])
        noise = draw.lognormvariate(0.0, 0.02)
        cost.observe(tokens + ridden, 10, noise * takes(tokens, ridden), 8, ridden=ridden, calm=calm)
    for ridden in (0, 60):
        step = cost.of_round(10, 0.0, 8, ridden)
        assert step is not None
        few, more = step(np.array([30.0, 50.0]) + ridden)
        assert few == pytest.approx(takes(30, ridden), rel=0.05)
        assert more - few == pytest.approx(0.002 * speed, rel=0.25)
        if speed == 1.0:  # else nothing is known of calm steps
            assert cost.of_plain_round(30.0 + ridden, 10, 8, ridden) == pytest.approx(takes(30, ridden), rel=0.05)


def test_prompts_past_the_end_of_a_plateau_are_told_apart_there() -> None:
    """Up to 64 tokens a step takes the same; prompts are free, and steps full of their own tokens are not."""
    cost, draw = StepCost(CostCurve([1, 64, 128], [10], [0.010, 0.010, 0.020])), random.Random(4)
    for _ in range(400):
        tokens, ridden = draw.randint(64, 84), draw.choice([0, 32])
        cost.observe(tokens + ridden, 10, 0.010 * tokens / 64.0, 16, ridden=ridden)
    step = cost.of_round_measured(10, 0.0, 16, 32)
    assert step is not None
    few, more = step(np.array([70.0, 84.0]) + 32.0)
    assert more - few == pytest.approx(0.010 * 14.0 / 64.0, rel=0.25)
    assert few == pytest.approx(0.010 * 70.0 / 64.0, rel=0.1)


def test_one_prompt_in_a_slow_moment_is_no_dear_prompt() -> None:
    curve, draw = CostCurve([1, 101], [10], [0.010, 0.020]), random.Random(5)
    for _ in range(200):
        curve.observe(8, 10, draw.lognormvariate(0.0, 0.03) * 0.0107, 8)
    before = curve.seconds(68, 10, 8, ridden=60)
    assert before == pytest.approx(0.0167, rel=0.05)
    curve.observe(68, 10, 1.3 * before, 8, ridden=60)
    assert curve.seconds(68, 10, 8, ridden=60) < 1.1 * before
    assert curve.seconds(8, 10, 8) == pytest.approx(0.0107, rel=0.03)


def test_first_steps_with_prompts_on_a_slow_machine_say_nothing_of_prompts() -> None:
    curve = CostCurve([1, 101], [10], [0.010, 0.020])
    for _ in range(50):
        curve.observe(60, 10, 0.030, 8, ridden=40)
    assert curve.riding(40, 10, 8, own=20) == pytest.approx(0.0, abs=0.0005)
    assert curve.seconds(20, 10, 8) == pytest.approx(0.030 * 0.0119 / 0.0159, rel=0.05)


def test_a_step_does_not_shrink_by_its_prompts() -> None:
    """Of a curve on which tokens that bring no sequences along make others' cheaper than they were measured."""
    curve = CostCurve(
        [1, 8, 64, 256], [10], [0.010, 0.010, 0.0101, 0.020], sequence_seconds=[2e-4], tokens_per_sequence=8
    )
    for ridden in (0, 16, 32) * 100:
        curve.observe(8 + ridden, 10, 0.0114, 8, ridden=ridden)
    for ridden in (16, 32):
        assert curve.seconds(8 + ridden, 10, 8, ridden=ridden) == pytest.approx(0.0114, rel=0.02)


def test_passes_beside_another_cohorts_step_are_costed_apart() -> None:
    cost = DraftCost(CostCurve([1, 8], [10], [0.004, 0.011]), block_size=8)
    for _ in range(50):
        cost.observe(1, 10, 8, 0.004)
    assert cost.seconds(1, 10, 8, beside=True) == pytest.approx(0.004, rel=0.05)  # until one was seen
    for _ in range(50):
        cost.observe(1, 10, 8, 0.008, beside=True)
    assert cost.seconds(1, 10, 8, beside=True) == pytest.approx(0.008, rel=0.05)
    assert cost.seconds(1, 10, 8) == pytest.approx(0.004, rel=0.05)


def test_a_step_beside_a_draft_raises_rounds_only_while_cohorts_take_turns() -> None:
    two = False
    cost = StepCost(CostCurve([1, 10], [10], [1.0, 10.0]), lambda: two)
    for _ in range(100):
        cost.observe(4.0, 10, 6.0, 0, beside=True)
    assert cost.slower_beside == pytest.approx(1.5)
    alone = cost.of_round(10, 0.5)
    assert alone is not None
    assert alone(np.array([4.0]))[0] == pytest.approx(4.5)
    two = True
    beside = cost.of_round(10, 0.5)
    assert beside is not None
    assert beside(np.array([4.0]))[0] == pytest.approx(6.5)


def test_a_running_mean_starts_at_the_first_observation() -> None:
    mean = Running(weight=0.5)
    mean.observe(2.0)
    mean.observe(4.0)
    assert mean.seconds == 3.0


TOKENS, CONTEXTS, PER = (1, 8, 16, 64, 128), (100, 1000), 8


def _step(tokens: float, context: float, sequences: float) -> float:
    """A device whose step is all three: itself, 0.3 ms a token, and the attention of each sequence."""
    return 4e-3 + 3e-4 * tokens + 4e-6 * context * sequences


def _of_sequences() -> CostCurve:
    measured = [_step(t, c, -(-t // PER)) for t in TOKENS for c in CONTEXTS]
    return CostCurve(TOKENS, CONTEXTS, measured, sequence_seconds=[4e-6 * c for c in CONTEXTS], tokens_per_sequence=PER)


@pytest.mark.parametrize(("tokens", "sequences"), [(16, 16), (64, 16), (128, 16), (64, 64), (8, 1)])
def test_a_step_is_priced_by_its_sequences_and_not_by_its_tokens_alone(tokens: int, sequences: int) -> None:
    curve, true = _of_sequences(), _step(tokens, 100, sequences)
    assert curve.seconds(tokens, 100, sequences) == pytest.approx(true, rel=0.02)
    assert curve.stairs(100, sequences)(np.array([float(tokens)]))[0] == pytest.approx(true, rel=0.02)


def test_tokens_of_the_same_sequences_are_cheaper_than_tokens_that_bring_sequences_along() -> None:
    curve = _of_sequences()
    same = curve.seconds(64, 1000, 16) - curve.seconds(16, 1000, 16)
    more = curve.seconds(64, 1000, 64) - curve.seconds(16, 1000, 16)
    assert same == pytest.approx(48 * 3e-4, rel=0.02)
    assert more == pytest.approx(48 * (3e-4 + 4e-3), rel=0.02)


def test_steps_of_many_sequences_teach_the_curve_no_false_slope() -> None:
    """Sixteen sequences with and without drafts: the slope of tokens stays what was measured."""
    curve = _of_sequences()
    for _ in range(200):
        for tokens in (16, 24, 60):
            curve.observe(tokens, 100, _step(tokens, 100, 16), 16)
    assert curve.seconds(64, 100, 16) - curve.seconds(16, 100, 16) == pytest.approx(48 * 3e-4, rel=0.05)
    assert curve.seconds(32, 100, 8) == pytest.approx(_step(32, 100, 8), rel=0.05)  # half of them


def test_what_sequences_cost_keeps_the_fit_convex_and_never_lets_a_step_shrink_by_growing() -> None:
    curve = CostCurve([1, 8, 16], [10], [1.0, 1.1, 1.2], sequence_seconds=[5.0], tokens_per_sequence=8)
    step = curve.column(10, 12.0)(np.arange(1.0, 40.0))
    assert (np.diff(step) >= -1e-12).all()
    assert (np.diff(step, 2) >= -1e-12).all()


@pytest.mark.parametrize("given", [[], [1e-3], [float("nan"), 0.0]])
def test_what_sequences_cost_is_left_out_where_it_is_not_known(given: list[float]) -> None:
    curve = CostCurve([1, 8], [10, 20], [1.0, 1.0, 2.0, 2.0], sequence_seconds=given, tokens_per_sequence=8)
    assert curve.seconds(8, 10, 8) == curve.seconds(8, 10)
