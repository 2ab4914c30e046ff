"""Temperatures are found from live rounds although most slots are never verified."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coordinator.lanes.refit import ENOUGH, Outcomes, Refit, key_of
from coordinator.lanes.rounds import Blocks
from dspark.types import Law, Rule

SLOTS = 5


def sigmoid(z: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-z))


def turn(rule: Rule = Rule.BLOCK, temperature: float = 1.0, version: str = "d") -> Any:
    law = Law(temperature=temperature, rule=rule)
    return SimpleNamespace(drafter_version=version, track=SimpleNamespace(request=SimpleNamespace(law=law)))


def rounds(n: int, factor: float, seed: int = 0, least: float = 0.3) -> tuple[Any, Any, Any]:
    """(confidence [n, k] with logits `factor` times the true ones, slots verified, accepted).

    Only slots above a threshold of survival are verified: the promising ones, as a scheduler chooses them.
    """
    rng = np.random.default_rng(seed)
    true = rng.normal(0.8, 1.5, (n, SLOTS))
    told = sigmoid(factor * true)
    whole = np.cumprod(rng.random((n, SLOTS)) < sigmoid(true), axis=1).sum(axis=1)
    prefixes = (np.cumprod(told, axis=1) >= least).sum(axis=1)
    return told, prefixes, np.minimum(whole, prefixes)


def test_the_temperature_is_found_although_unpromising_slots_have_no_outcome() -> None:
    outcomes = Outcomes(SLOTS)
    for seed in range(10):
        outcomes.add(*rounds(4_000, 1.5, seed))
    assert outcomes.steps() == pytest.approx(1.5, rel=0.08)
    # Counting what was not verified as lost, or leaving out who had got that far, is found out:
    told, prefixes, accepted = rounds(40_000, 1.0)
    assert prefixes.mean() < 0.7 * SLOTS
    right, wrong = Outcomes(SLOTS), Outcomes(SLOTS)
    right.add(told, prefixes, accepted)
    wrong.add(told, np.full_like(prefixes, SLOTS), accepted)
    assert right.steps() == pytest.approx(1.0, rel=0.08)
    assert (np.abs(np.log(wrong.steps())) > 0.2).any()


@pytest.mark.parametrize("sure", [0.03, 0.3, 0.47, 0.5, 0.55, 0.7, 0.8, 0.93])
@pytest.mark.parametrize("seen", [1_000, 100_000])
def test_one_and_the_same_confidence_that_is_right_is_left_alone(sure: float, seen: int) -> None:
    accepted = (np.arange(seen) < round(sure * seen)).astype(np.int64)
    outcomes = Outcomes(1)
    outcomes.add(np.full((seen, 1), sure), np.ones(seen, np.int64), accepted)
    assert outcomes.steps().tolist() == [1.0]


@pytest.mark.parametrize("present", [0.6, 1.0, 1.8])
def test_steps_are_counted_from_the_present_temperature(present: float) -> None:
    outcomes = Outcomes(SLOTS)
    for seed in range(10):
        outcomes.add(*rounds(4_000, 1.2 * present, seed))
    assert outcomes.steps(np.full(SLOTS, present)) == pytest.approx(1.2, rel=0.12)


def test_rounds_under_way_at_a_fit_mislead_nobody() -> None:
    """As many as make a fit were told before the first one, and are judged behind it."""
    refit = Refit()
    key = key_of(turn())
    refit.observe([turn()] * ENOUGH, *rounds(ENOUGH, 1.4, 1))
    first = refit.temperatures(key)
    refit.observe([turn()] * ENOUGH, *rounds(ENOUGH, 1.4, 2))
    second = refit.temperatures(key)
    assert first is not None
    assert second is not None
    assert np.abs(np.log(second / 1.4)).max() < 0.2, "1.4 twice over would be 1.96"
    assert (second != first).any()


def test_a_few_rounds_move_little_and_no_rounds_nothing() -> None:
    outcomes = Outcomes(SLOTS)
    assert outcomes.steps().tolist() == [1.0] * SLOTS
    outcomes.add(*rounds(20, 2.0))
    assert (np.abs(np.log(outcomes.steps())) < 0.2).all()


def test_live_rounds_correct_what_is_told_and_then_leave_it() -> None:
    refit, turns = Refit(), [turn()] * 256
    for seed in range(12 * ENOUGH // 256):
        told, _, _ = rounds(256, 2.0, seed)
        blocks = refit.corrected(turns, Blocks(told, np.full(256, SLOTS)))
        # The scheduler sees corrected survival; what becomes of a block is the same draw of the seed.
        rng = np.random.default_rng(seed)
        true = rng.normal(0.8, 1.5, (256, SLOTS))
        whole = np.cumprod(rng.random((256, SLOTS)) < sigmoid(true), axis=1).sum(axis=1)
        prefixes = (blocks.alive() >= 0.3).sum(axis=1)
        refit.observe(turns, told, prefixes, np.minimum(whole, prefixes))
    found = refit.temperatures(key_of(turns[0]))
    assert found is not None
    assert found == pytest.approx(2.0, rel=0.1)


def test_rules_buckets_and_versions_are_apart() -> None:
    refit = Refit()
    kinds = [turn(), turn(Rule.TOKEN), turn(temperature=0.0), turn(version="e")]
    assert len({key_of(kind) for kind in kinds}) == 4
    told, prefixes, accepted = rounds(ENOUGH, 2.0)
    refit.observe([kinds[0]] * ENOUGH, told, prefixes, accepted)
    blocks = Blocks(told[:4], np.full(4, SLOTS))
    made = refit.corrected(kinds, blocks)
    assert not np.allclose(made.confidence[0], told[0])
    np.testing.assert_allclose(made.confidence[1:], told[1:4], atol=1e-12)


def test_nothing_learnt_changes_nothing_and_certainty_stays() -> None:
    refit = Refit()
    blocks = Blocks(np.array([[0.5, 1.0, np.nan]]), np.array([2]))
    assert refit.corrected([turn()], blocks) is blocks
    told, prefixes, accepted = rounds(ENOUGH, 2.0)
    refit.observe([turn()] * ENOUGH, told, prefixes, accepted)
    made = refit.corrected([turn()], blocks).confidence
    assert made[0, 0] == pytest.approx(0.5)
    assert made[0, 1] == 1.0
    assert np.isnan(made[0, 2])
    sure = Outcomes(2)
    sure.add(np.ones((50, 2)), np.full(50, 2), np.zeros(50, np.int64))
    assert sure.steps().tolist() == [1.0, 1.0]


def test_survival_still_never_increases() -> None:
    refit = Refit()
    told, prefixes, accepted = rounds(ENOUGH, 0.5)
    refit.observe([turn()] * ENOUGH, told, prefixes, accepted)
    alive = refit.corrected([turn()] * 64, Blocks(told[:64], np.full(64, SLOTS))).alive()
    assert (np.diff(alive, axis=1) <= 0).all()


def test_one_round_in_so_many_is_due() -> None:
    refit = Refit(every=3)
    assert [refit.due() for _ in range(7)] == [False, False, True, False, False, True, False]


def test_more_keys_than_fit_are_not_kept() -> None:
    refit = Refit()
    told, prefixes, accepted = rounds(1, 1.0)
    for number in range(200):
        refit.observe([turn(version=str(number))], told, prefixes, accepted)
    assert len(refit._outcomes) == 64


def chances(n: int, factor: float, seed: int) -> tuple[Any, Any]:
    """(what `rounds` of the same arguments were tossed from, as labels [n, k, 2]; NaN for every other sequence)."""
    rng = np.random.default_rng(seed)
    each = sigmoid(rng.normal(0.8, 1.5, (n, SLOTS)))
    kept = np.cumprod(each, axis=1)
    reached = np.concatenate((np.ones((n, 1)), kept[:, :-1]), axis=1)
    labels = np.stack((reached, kept), axis=-1)
    mixed = labels.copy()
    mixed[1::2] = np.nan
    return labels, mixed


def test_chances_teach_the_same_as_outcomes_and_sooner() -> None:
    fits: dict[str, list[Any]] = {"outcomes": [], "chances": [], "both": []}
    for seed in range(30):
        told, prefixes, accepted = rounds(400, 1.4, seed)
        whole, mixed = chances(400, 1.4, seed)
        for name, labels in (("outcomes", None), ("chances", whole), ("both", mixed)):
            outcomes = Outcomes(SLOTS)
            outcomes.add(told, prefixes, accepted, labels)
            fits[name].append(np.log(outcomes.steps()))
    spread = {name: np.std(each, axis=0).mean() for name, each in fits.items()}
    assert spread["chances"] < 0.6 * spread["outcomes"]
    assert spread["chances"] < spread["both"] < spread["outcomes"]
    assert np.mean(fits["chances"], axis=0) == pytest.approx(np.mean(fits["outcomes"], axis=0), abs=0.1)
