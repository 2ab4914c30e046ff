"""Forced acceptance reaches the mean it is told, repeats, and leaves refusals alone."""

import pytest
import torch

from benchmarks.forced import Forced, chance_for
from dspark.decoding.acceptance import PackedCase
from dspark.types import NO_Q, Cursor, Refusal, RefusalReason, SamplingParams


def cases(count: int) -> list[PackedCase]:
    cursors = [Cursor(n % 64, 1, n, 100 + n) for n in range(count)]
    return [
        PackedCase(cursor, SamplingParams(seed=n), 8 * n, tuple(range(7)), NO_Q)
        for n, cursor in enumerate(cursors)
    ]


@pytest.mark.parametrize("mean", [1.0, 2.5, 3.61, 8.0])
def test_the_mean_is_reached(mean: float) -> None:
    drawn = Forced(mean, 7).apply(torch.zeros(8 * 4000, 4), cases(4000), [(0, 0)] * 4000)
    committed = [1 + one[0] for one in drawn if not isinstance(one, Refusal)]
    assert sum(committed) / len(committed) == pytest.approx(mean, abs=0.12)
    assert drawn == Forced(mean, 7).apply(torch.zeros(8 * 4000, 4), cases(4000), [(7, 1)] * 4000)


def test_the_target_says_what_follows_and_refusals_stay() -> None:
    logits = torch.eye(8).repeat(2, 1)  # row n of a case says token n
    refusal = Refusal(RefusalReason.INTERNAL, "no numbers")
    drawn = Forced(8.0, 7).apply(logits, cases(2), [(2, 5), refusal])
    assert drawn == [(7, 7), refusal]


def test_a_mean_that_no_block_reaches_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot commit 9"):
        chance_for(9.0, 7)
