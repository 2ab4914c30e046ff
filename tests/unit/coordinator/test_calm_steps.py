"""Steps of plain stretches and steps among drafted ones, told apart from whatever mix of them a lane takes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from coordinator.scheduling.calm_steps import CalmSteps
from coordinator.scheduling.cost_curve import CostCurve
from coordinator.scheduling.step_cost import StepCost

Noise = Callable[[np.random.Generator], float]

CURVE = CostCurve([1, 10], [10], [1.0, 4.0])


def _lognormal(sigma: float) -> Noise:
    return lambda rng: float(np.exp(rng.normal(0.0, sigma) - sigma * sigma / 2.0))


def _stalls(share: float, times: float = 4.0) -> Noise:
    return lambda rng: times if rng.random() < share else 1.0


@pytest.mark.parametrize("noise", [_lognormal(0.05), _lognormal(0.3), _stalls(0.1)], ids=["calm", "rough", "stalls"])
@pytest.mark.parametrize(("plain", "drafted"), [(256, 2), (40, 20), (2, 100)])
@pytest.mark.parametrize("cold", [1.0, 1.7])
def test_noise_favours_neither_kind_however_rare_it_is(noise: Noise, plain: int, drafted: int, cold: float) -> None:
    rng, steps, found = np.random.default_rng(1), CalmSteps(), list[float]()
    for turn in range(120):
        for _ in range(drafted):
            steps.observe(cold * noise(rng), calm=False)
        for _ in range(plain):
            steps.observe(noise(rng), calm=True)
        if turn >= 40:
            found.append(steps.less)
    assert np.exp(np.mean(found)) == pytest.approx(1.0 / cold, rel=0.07)


def test_a_machine_whose_speed_moves_while_only_one_kind_is_seen_changes_nothing_between_them() -> None:
    steps = CalmSteps()
    for _ in range(10):
        for calm, ratio in ((False, 1.7), (True, 1.0)):
            for _ in range(20):
                steps.observe(ratio, calm)
    for ratio in np.geomspace(1.0, 2.0, 2000):  # a long plain stretch in which the machine comes to be half as fast
        steps.observe(ratio, calm=True)
    assert steps.factor == pytest.approx(1.0 / 1.7, rel=0.1)
    for _ in range(4):
        steps.observe(3.4, calm=False)
    assert steps.factor == pytest.approx(1.0 / 1.7, rel=0.1)


def test_a_lane_that_only_drafts_expects_of_calm_steps_what_the_curve_says() -> None:
    cost = StepCost(CostCurve([1, 10], [10], [1.0, 4.0]))
    for _ in range(100):
        cost.observe(4.0, 10, 1.7 * CURVE.measured(4.0, 10), 1)
    assert cost.of_plain_round(1.0, 10, 1) == pytest.approx(1.0, rel=0.05)


def test_what_was_not_seen_for_long_is_hoped_to_be_better() -> None:
    steps = CalmSteps()
    for _ in range(40):
        steps.observe(1.0, calm=False)
        steps.observe(1.0, calm=True)
    assert steps.hoped == pytest.approx(1.0, abs=0.02)
    for _ in range(20_000):
        steps.observe(1.0, calm=False)
    assert steps.factor == pytest.approx(1.0, abs=0.02)
    assert steps.hoped < 0.9
    for _ in range(8):
        steps.observe(1.0, calm=True)
    assert steps.hoped == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("ratio", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_time_says_nothing(ratio: float) -> None:
    steps = CalmSteps()
    steps.observe(ratio, calm=True)
    assert steps == CalmSteps()


def test_one_stall_moves_little_and_nothing_leaves_the_bounds() -> None:
    steps = CalmSteps()
    for _ in range(100):
        steps.observe(1.0, calm=False)
        steps.observe(1.0, calm=True)
    steps.observe(1000.0, calm=True)
    assert steps.factor == pytest.approx(1.0, rel=0.1)
    for _ in range(500):
        steps.observe(1.0, calm=False)
        steps.observe(0.01, calm=True)
    assert steps.factor == steps.hoped == 0.4


def test_a_calm_step_beside_another_cohorts_draft_is_held_against_calm_steps() -> None:
    cost = StepCost(CostCurve([1, 10], [10], [1.0, 4.0]))
    for _ in range(20):
        for calm, ratio in ((False, 2.0), (True, 1.0)):
            for _ in range(20):
                cost.observe(1.0, 10, ratio, 1, calm=calm)
    for _ in range(40):
        cost.observe(1.0, 10, 1.0, 1, beside=True, calm=True)
    assert cost.slower_beside == pytest.approx(1.0, rel=0.05)
