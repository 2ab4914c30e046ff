"""The papers' definitions, on rounds that can be counted by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dspark.model.calibration import SlotFit
from dspark.training import metrics
from dspark.training.asked import TargetText
from dspark.training.judged import Text, whole_blocks
from dspark.training.rounds import EvaluatedRound
from dspark.types import SamplingParams

DRAWN = SamplingParams()


def test_tau_counts_the_targets_own_token_and_pools_over_rounds() -> None:
    made = metrics.figures(
        [
            EvaluatedRound(0, 3, 2, 3),
            EvaluatedRound(3, 3, 0, 1),
            EvaluatedRound(4, 3, 3, 4),
            EvaluatedRound(8, 1, 1, 1),
        ],
        3,
    )
    assert made["tau"] == pytest.approx(9 / 4)
    assert made["verify_rate"] == pytest.approx(9 / (10 + 4))
    assert made["proposed"] == pytest.approx(10 / 4 + 1)
    # The round that ended its text after one slot says nothing about the others.
    assert made["survival"] == pytest.approx([3 / 4, 2 / 3, 1 / 3])
    assert made["conditional"] == pytest.approx([3 / 4, (2 / 3) / (3 / 4), 0.5])


def test_no_rounds_have_no_figures() -> None:
    made = metrics.figures([], 2)
    assert math.isnan(made["tau"])
    assert metrics.plain(made)["tau"] is None
    assert metrics.plain(made)["survival"] == [None, None]


def test_a_slot_below_the_threshold_cuts_and_one_at_it_stays() -> None:
    confidence = np.array([[0.5, 0.4, 0.9], [0.1, 0.9, 0.9], [0.9, 0.9, 0.9]])
    assert metrics.above(confidence, 0.5) == [1, 0, 3]
    assert metrics.above(confidence, 0.0) == [3, 3, 3]


def text(accepted: list[int], logits: list[list[float]]) -> Text:
    size = len(accepted)
    ids = torch.arange(2 + size + 4)[None]
    answer = TargetText((0, 1), ids, (False,) * (size + 4), size, size, DRAWN)
    return Text(answer, np.array(accepted), np.array(logits))


def test_an_answer_loops_where_eight_tokens_come_twice() -> None:

    def said(*ids: int) -> Text:
        size, told = len(ids), torch.tensor([[0, 1, *ids, *range(10, 18)]])
        answer = TargetText((0, 1), told, (False,) * size, size, size, DRAWN)
        return Text(answer, np.zeros(size, np.int64), None)

    once, twice = range(10, 27), [*range(10, 18), 5, *range(10, 18)]
    assert not metrics.loops(said(*once)), "what lies behind the answer does not count"
    assert metrics.loops(said(*twice))
    assert not metrics.loops(said(*range(3)))


def test_the_sweep_replays_the_same_blocks_with_shorter_prefixes() -> None:
    one = text(
        [2, 0, 0, 2, 0, 0],
        [[5.0, 5.0], [5.0, -5.0], [5.0, -5.0], [5.0, -5.0], [-5.0, 5.0], [5.0, 5.0]],
    )
    points = metrics.sweep([one], 2, [0.0, 0.5], None)
    # Whole: rounds at 0 and 3, of 3 tokens each. Cut: at 0 whole, at 3 one slot, and at 5 nothing
    # is left to do.
    assert points[0] == {
        "threshold": 0.0,
        "tau": 3.0,
        "verified": 3.0,
        "verified_per_committed": 1.0,
        "verify_rate": 1.0,
    }
    assert points[1]["tau"] == pytest.approx(5 / 2)
    assert points[1]["verified"] == pytest.approx((3 + 2) / 2)


def test_calibration_moves_where_a_threshold_cuts() -> None:
    one = text([2, 0, 0], [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    fits = (None, SlotFit((1.0, 4.0)), SlotFit((1.0, 1.0), (-1.0, 0.0)))
    raw, scaled, moved = (metrics.sweep([one], 2, [0.7], fit)[0]["verified"] for fit in fits)
    assert raw == 3.0
    assert scaled == 2.0  # sigmoid(1/4) < 0.7
    assert moved == 1.0  # sigmoid(1 - 1) < 0.7
    told = metrics.confidence([one], 2, fits[1])
    assert told is not None
    assert told["raw"]["mean_predicted"] == pytest.approx([0.731, 0.731**2], abs=1e-3)
    assert told["calibrated"]["mean_predicted"] == pytest.approx([0.731, 0.731 * 0.562], abs=1e-3)


def test_what_is_verified_for_each_committed_token() -> None:
    none_right = text([0, 0, 0], [[1.0, 1.0]] * 3)
    (point,) = metrics.sweep([none_right], 2, [0.0], None)
    assert (point["verified_per_committed"], point["verify_rate"]) == (3.0, pytest.approx(1 / 3))


def test_rounds_that_ended_their_text_are_no_samples() -> None:
    one = text([1, 0, 1, 0], [[float(n), 0.0] for n in range(4)])
    answer = replace(one.answer, ends=(False, False, False, True, *[False] * 4))
    logits, accepted = whole_blocks([replace(one, answer=answer)], 2)
    assert accepted.tolist() == [1]
    assert logits.tolist() == [[0.0, 0.0]]


def test_intervals_hold_the_mean_and_widen_with_fewer_texts() -> None:
    rounds = [[EvaluatedRound(0, 7, n % 5, n % 5 + 1)] * 4 for n in range(40)]
    low, high = metrics.interval(rounds)
    few_low, few_high = metrics.interval(rounds[:5])
    assert low < 3.0 < high
    assert high - low == pytest.approx(2 * 1.96 * (2 / 40) ** 0.5, rel=0.08), "95 %, of texts"
    assert few_high - few_low > high - low
