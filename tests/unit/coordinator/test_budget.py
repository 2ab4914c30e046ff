import numpy as np
import pytest

from coordinator.scheduling.budget import Budget
from dspark.rounds.schedule import Floats, StepSeconds


def affine(fixed: float, per_token: float) -> StepSeconds:
    return lambda tokens: fixed + per_token * tokens


def test_without_a_past_there_is_no_budget() -> None:
    assert Budget().slots(4, 4.0, 4.0, affine(1.0, 0.1)) is None


def test_the_budget_is_the_best_of_all_sizes_for_what_was_promised() -> None:
    budget, rng = Budget(), np.random.default_rng(0)
    worth = np.cumprod(rng.random((64, 5)), axis=1)
    budget.remember(worth)
    step = affine(0.1, 0.002)
    values = np.sort(worth, axis=None)[::-1]
    rates = (64 + np.concatenate(([0.0], np.cumsum(values)))) / step(64 + np.arange(len(values) + 1.0))
    assert budget.slots(64, 64.0, 64.0, step) == int(rates.argmax())


def test_a_stair_does_not_trap_the_search() -> None:
    budget = Budget()
    budget.remember(np.full((8, 4), 0.9))

    def stairs(tokens: Floats) -> Floats:
        return np.where(tokens <= 8, 1.0, 1.5) + 0.001 * tokens

    assert budget.slots(8, 8.0, 8.0, stairs) == 32


def test_another_number_of_sequences_scales_it() -> None:
    budget = Budget()
    budget.remember(np.tile([0.9, 0.01], (64, 1)))
    step = affine(0.1, 0.003)
    assert budget.slots(64, 64.0, 64.0, step) == 64
    assert budget.slots(32, 32.0, 32.0, step) == pytest.approx(32, abs=1)


def test_what_one_round_left_over_is_not_spent_in_another() -> None:
    # Every other block promises everything, the others nothing: a lone sequence must ask for whole blocks or none.
    budget = Budget()
    for number in range(32):
        budget.remember(np.full((1, 4), 1.0 if number % 2 else 0.0))
    assert budget.slots(1, 1.0, 1.0, affine(1.0, 0.01)) == 4


def test_the_past_is_bounded() -> None:
    budget = Budget()
    for _ in range(1000):
        budget.remember(np.full((1, 4), 0.5))
    assert len(budget._rounds) <= 32
