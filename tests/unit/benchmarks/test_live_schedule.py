"""Simulated rounds on recorded blocks: what they take and commit, and that the live walk is the best of all sizes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.live_schedule import HOP_S, Live, Plain, Priced, Recorded, Recording, rate
from coordinator.planning.cost_curve import CostCurve

TOKENS = [1, 8, 64, 512]
CHEAP = CostCurve(TOKENS, [1], [0.020, 0.021, 0.023, 0.050])
DEAR = CostCurve(TOKENS, [1], [0.020, 0.400, 3.200, 25.60])
DRAFT, SLOW_DRAFT = CostCurve([1, 64], [1], [0.002, 0.004]), CostCurve([1, 64], [1], [0.2, 0.4])
SURE, UNSURE = Recorded((0.9, 0.8, 0.9), 3), Recorded((0.3, 0.2, 0.2), 0)


def recording(verify: CostCurve, draft: CostCurve = DRAFT) -> Recording:
    return Recording([[SURE, SURE, UNSURE], [SURE, UNSURE]], 3, verify, draft)


def test_plain_rounds_commit_a_token_each() -> None:
    assert rate(recording(CHEAP), 4, Plain(recording(CHEAP), 4), 80) == pytest.approx(4 / CHEAP.measured(4, 256.0, 4))


def test_the_live_walk_is_the_best_of_all_prefixes() -> None:
    made = recording(CHEAP)
    confidence = np.array([SURE.confidence, UNSURE.confidence])
    alive = np.cumprod(confidence, axis=1)

    def worth(lengths: tuple[int, int]) -> float:
        expected = 2 + sum(float(alive[row, :length].sum()) for row, length in enumerate(lengths))
        return expected / made.round_s(2 + sum(lengths), 2, 3)

    best = max(itertools.product(range(4), repeat=2), key=worth)
    chosen = Live(made, 2).prefixes(confidence)
    assert worth((int(chosen[0]), int(chosen[1]))) == pytest.approx(worth(best))
    assert chosen.sum() > 0
    assert Live(recording(DEAR), 2).prefixes(confidence).tolist() == [0, 0]


def test_a_round_of_whole_blocks_takes_both_passes_and_the_hop() -> None:
    made = Recording([[SURE]], 3, CHEAP, DRAFT)
    assert rate(made, 1, Live(made, 1), 40) == pytest.approx(4 / (CHEAP.measured(4, 256.0, 1) + 0.002 + HOP_S))


def test_the_price_keeps_up_and_goes_without_drafts_that_do_not_pay() -> None:
    cheap, dear = recording(CHEAP), recording(DEAR, SLOW_DRAFT)
    assert rate(cheap, 8, Priced(cheap, 8), 600) >= 0.95 * rate(cheap, 8, Live(cheap, 8), 600)
    assert rate(dear, 8, Priced(dear, 8), 600) >= 0.97 * rate(dear, 8, Plain(dear, 8), 600)
    assert rate(dear, 8, Live(dear, 8), 600) < 0.8 * rate(dear, 8, Plain(dear, 8), 600)  # paid before the walk
