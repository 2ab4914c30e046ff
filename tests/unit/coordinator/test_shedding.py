"""Speculation is what a filling lane sheds first: the more sequences share a step, the fewer slots are verified."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from coordinator.scheduling.cost_curve import CostCurve
from coordinator.scheduling.step_cost import StepCost
from dspark.rounds.policy import Columns, Greedy
from dspark.rounds.schedule import schedule

SLOTS = 7
TOKENS = [1, 8, 32, 64, 128, 256, 512, 1024, 2048]
# A device that takes 64 tokens in the time of one and then so much for each more: what a GPU does.
SECONDS = [0.020 + 0.0003 * max(count - 64, 0) for count in TOKENS]


def verified_each(sequences: int) -> float:
    """Slots verified per sequence where blocks are as good as ever."""
    cost = StepCost(CostCurve(TOKENS, [128], SECONDS))
    confidence = np.random.default_rng(1).uniform(0.6, 0.95, (sequences, SLOTS))
    lengths = np.full(sequences, SLOTS)
    policies = Columns.of([Greedy()] * sequences)
    step = cost.of_round(128.0, 0.002, sequences)
    chosen = schedule(confidence, lengths, policies, step)
    return float(chosen.mean())


def test_the_fuller_a_lane_the_fewer_slots_are_verified() -> None:
    verified = [verified_each(sequences) for sequences in (1, 8, 16, 32, 64, 128, 256)]
    assert verified[0] > 6.0  # a step has room for whole blocks
    assert all(fuller <= emptier + 0.1 for emptier, fuller in pairwise(verified))
    assert verified[-3] < 0.1 * verified[0]
    assert verified[-1] < 0.01 * verified[0]  # plain decoding
