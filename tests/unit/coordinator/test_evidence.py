import numpy as np
import pytest

from coordinator.scheduling.evidence import Evidence, keyed


def round_of(evidence: Evidence, rows: list[int], alive: list[list[float]], prefix: int, accepted: int) -> None:
    count, width = len(rows), len(alive[0])
    evidence.observe(
        np.array(rows),
        np.array(alive),
        np.full(count, width),
        np.full(count, prefix),
        np.full(count, accepted),
    )


def filled(slots: int = 4) -> Evidence:
    evidence = Evidence()
    evidence.widen(slots)
    return evidence


def test_gains_are_the_mean_survival_of_slots_that_were_verified() -> None:
    evidence = filled()
    row = evidence.take()
    for _ in range(200):
        round_of(evidence, [row], [[0.8, 0.6, 0.5, 0.4]], prefix=2, accepted=1)
    assert evidence.gain[row] == pytest.approx([0.8, 0.6, 0.0, 0.0], abs=0.01)
    assert evidence.used[row] == pytest.approx([1.0, 1.0, 0.0, 0.0], abs=0.01)


def test_a_slot_that_was_worth_its_price_counts_although_a_budget_left_it_out() -> None:
    evidence = filled()
    row = evidence.take()
    for _ in range(200):
        evidence.observe(
            np.array([row]),
            np.array([[0.8, 0.6, 0.5, 0.1]]),
            np.array([4]),
            np.array([1]),
            np.array([1]),
            price=0.4,
        )
    assert evidence.gain[row] == pytest.approx([0.8, 0.6, 0.5, 0.0], abs=0.01)


def test_confidence_that_is_never_borne_out_loses_its_trust() -> None:
    evidence = filled()
    honest, boastful = evidence.take(), evidence.take()
    for _ in range(300):
        round_of(evidence, [honest], [[0.9, 0.8, 0.7, 0.6]], prefix=4, accepted=3)
        round_of(evidence, [boastful], [[0.9, 0.8, 0.7, 0.6]], prefix=4, accepted=0)
    trust = evidence.trust(np.array([honest, boastful]))
    assert trust[0] == pytest.approx(1.0, abs=0.4)
    assert trust[1] < 0.5 * trust[0]


def test_a_new_sequence_is_expected_to_be_like_those_that_ended() -> None:
    evidence = filled()
    for _ in range(60):
        row = evidence.take()
        for _ in range(20):
            round_of(evidence, [row], [[0.1, 0.0, 0.0, 0.0]], prefix=1, accepted=0)
        evidence.free(row)
    assert evidence.gain[evidence.take()].sum() < 0.3


def test_a_sequence_that_comes_back_is_no_example_for_others() -> None:
    evidence = filled()
    before = evidence.gain[evidence.take()].copy()
    for _ in range(60):
        row = evidence.take()
        for _ in range(20):
            round_of(evidence, [row], [[0.1, 0.0, 0.0, 0.0]], prefix=1, accepted=0)
        evidence.free(row, ended=False)
    assert evidence.gain[evidence.take()] == pytest.approx(before)


def test_slots_that_are_no_longer_drafted_are_not_taken_for_worthless() -> None:
    evidence = filled()
    row = evidence.take()
    for _ in range(300):
        round_of(evidence, [row], [[0.9, 0.8]], prefix=2, accepted=2)
    assert evidence.gain[row, 2] > 0.3


def test_rows_are_used_again_and_the_table_grows() -> None:
    evidence = filled()
    rows = [evidence.take() for _ in range(100)]
    assert sorted(rows) == list(range(100))
    evidence.free(7)
    assert evidence.take() == 7


def test_the_keyed_hash_is_a_function_of_sequence_and_round_and_uniform() -> None:
    sequences = np.arange(200, dtype=np.uint64).repeat(200)
    rounds = np.tile(np.arange(200, dtype=np.uint64), 200)
    drawn = keyed(sequences, rounds)
    assert (drawn == keyed(sequences, rounds)).all()
    assert ((drawn >= 0) & (drawn < 1)).all()
    assert np.histogram(drawn, bins=10)[0] == pytest.approx(np.full(10, 4000), rel=0.1)
    assert len(np.unique(drawn)) == len(drawn)
