"""What a planner learns: one acceptance estimator and one cost corrector."""

import numpy as np
import pytest

from coordinator.planning.acceptance import KEYS, AcceptanceEstimator
from coordinator.planning.cost import OUTLIER, USUAL, RunningRatio
from coordinator.planning.exploration import IN_A_ROW
from tests.unit.planning.rounds_of import CONTEXT, COSTS, SLOTS, Costs, lane, learn, planner_of


@pytest.mark.parametrize(
    ("slots", "cohorts", "seconds"),
    [
        pytest.param(4, 1, 17e-3, id="one cohort"),
        pytest.param(4, 2, 20e-3, id="both passes"),
        pytest.param(9, 2, 22e-3, id="one of them by itself"),
        pytest.param(20, 2, 40e-3, id="both drafts"),
    ],
)
def test_what_two_cohorts_take_is_the_longest_of_what_must_follow_each_other(
    slots: int, cohorts: int, seconds: float
) -> None:
    costs = Costs(lambda t: 10e-3, lambda n, k: 1e-3 * k, 3e-3)
    corrector = planner_of(costs).cost
    (took,) = corrector.round_s(np.array([64.0]), CONTEXT, 32, 32, slots, cohorts)
    assert took == pytest.approx(seconds)


def test_a_verifier_that_becomes_slower_is_so_in_rounds_of_both_kinds() -> None:
    """Else drafts begin whenever it is slower for a moment: their rounds look as fast as then."""
    cost = planner_of(COSTS["gpu"]).cost
    for _ in range(20 * USUAL):
        cost.correct(cost.plain, 1.0)
    for _ in range(20 * USUAL):
        cost.correct(cost.drafted, 1.5)
    assert cost.plain.value == pytest.approx(1.0, rel=0.2), "drafted rounds take longer by nature"
    ratio = cost.drafted.value / cost.plain.value
    for _ in range(20 * USUAL):
        cost.correct(cost.drafted, 2.0)
    assert cost.drafted.value == pytest.approx(2.0, rel=0.01)
    assert cost.drafted.value / cost.plain.value == pytest.approx(ratio)


def test_what_is_tried_says_what_it_takes_beside_the_usual() -> None:
    cost = planner_of(COSTS["gpu"]).cost
    for number in range(200 * USUAL):
        speed, usual = 1.0 + 0.3 * (number > 100 * USUAL), cost.plain.value
        for _ in range(IN_A_ROW if number % USUAL == 0 else 0):
            cost.correct(cost.drafted, 1.2 * speed)
        assert number < USUAL or cost.plain.value == usual, "a try says nothing of plain rounds"
        cost.correct(cost.plain, speed)
    assert cost.plain.value == pytest.approx(1.3, rel=0.05)
    assert cost.drafted.value / cost.plain.value == pytest.approx(1.2, rel=0.05)


def test_empty_blocks_in_a_drafted_round_say_nothing() -> None:
    planner = planner_of(COSTS["gpu"], explore=0.0)
    rounds = np.full((4, SLOTS), np.nan)
    rounds[0] = 0.9
    draft_s = COSTS["gpu"].draft_s(1, SLOTS)
    for _ in range(40):
        learn(planner, rounds, 0, 0, (20.4e-3, 25e-3, draft_s))
    assert planner.acceptance.usual() == pytest.approx(np.full(SLOTS, 0.9), abs=0.01)
    assert planner.cost.drafting.value == pytest.approx(1.0)
    assert planner.next(lane(4, cohorts=1)).terms.price == pytest.approx(0.9**SLOTS, rel=0.05), (
        "of what was drafted"
    )


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("price", [0.0, 0.5, 0.9])
def test_verifying_promising_slots_alone_bends_no_estimate(price: float, labels: bool) -> None:
    rng = np.random.default_rng(1)
    estimator = AcceptanceEstimator(SLOTS)
    for _ in range(200):
        sure = rng.beta(0.7, 0.3, (16, SLOTS))
        alive = np.cumprod(sure, axis=1)
        verified = (alive >= price).sum(axis=1)
        accepted = np.minimum(
            np.cumprod(rng.random(sure.shape) < sure, axis=1).sum(axis=1), verified
        )
        known = None
        if labels:
            before = np.concatenate((np.ones((16, 1)), alive[:, :-1]), axis=1)
            known = np.stack((before, alive), axis=2)
        estimator.observe(["d"] * 16, sure, verified, accepted, known)
    assert estimator.trust("d") == pytest.approx(1.0, abs=0.03)
    assert estimator.ratios("d")[:3] == pytest.approx(np.ones(3), abs=0.06)


def test_what_a_slot_keeps_of_its_promise_is_found_slot_by_slot() -> None:
    rng = np.random.default_rng(2)
    estimator = AcceptanceEstimator(3)
    truth = np.array([1.0, 0.8, 0.5])
    for _ in range(400):
        sure = rng.uniform(0.5, 1.0, (16, 3))
        kept = rng.random(sure.shape) < sure * truth
        accepted = np.cumprod(kept, axis=1).sum(axis=1)
        estimator.observe(["d"] * 16, sure, np.full(16, 3), accepted)
    assert estimator.ratios("d") == pytest.approx(truth, abs=0.08)
    assert estimator.ratios("of nobody")[0] == pytest.approx(estimator.trust("of nobody")), (
        "what the lane is like"
    )
    assert estimator.usual() == pytest.approx(np.full(3, 0.75), abs=0.03)


def test_one_key_does_not_spoil_another_and_bad_numbers_spoil_nothing() -> None:
    estimator = AcceptanceEstimator(2)
    for _ in range(100):
        estimator.observe(["a", "b"], np.full((2, 2), 0.9), np.full(2, 2), np.array([2, 0]))
    assert estimator.trust("a") > 1.0 > 0.3 > estimator.trust("b")
    estimator.observe(["c"], np.array([[np.nan, 7.0]]), np.array([2]), np.array([0]))
    assert np.isfinite(estimator.ratios("c")).all()


def test_new_keys_are_learned_of_however_many_there_were_before() -> None:
    estimator = AcceptanceEstimator(2)

    def observe(key: str, accepted: int) -> None:
        sure = np.full((1, 2), 0.9)
        estimator.observe([key], sure, np.array([2]), np.array([accepted]))

    for number in range(KEYS):
        observe(f"old {number}", 2)
    observe("old 0", 2)
    for _ in range(500):
        observe("new", 0)
    assert estimator.trust("new") < 0.2
    assert len(estimator._sums) == KEYS
    assert "old 0" in estimator._sums, "it was seen again"
    assert "old 1" not in estimator._sums


def test_a_running_ratio_is_slow_and_no_single_value_pulls_it_away() -> None:
    ratio = RunningRatio(1.0)
    for _ in range(50):
        ratio.add(1.0)
    ratio.add(1e6)
    assert 1.0 < ratio.value <= 1.0 + 0.05 * OUTLIER
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        ratio.add(bad)
    assert ratio.seen == 51


def test_passes_with_prompts_say_nothing_of_rounds() -> None:
    planner = planner_of(COSTS["gpu"])
    nothing = np.zeros((4, 0))
    for _ in range(2):
        learn(planner, nothing, 0, 0, (1.0, 1.0, 0.0), prompts=256)
    assert planner.cost.plain.seen == 0
    learn(planner, nothing, 0, 0, (0.02, 0.03, 0.0))
    assert planner.cost.plain.seen == 1
