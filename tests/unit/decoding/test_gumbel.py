"""The race is a draw from its distribution, and every way of running it gives the same numbers."""

import math

import numpy as np
import pytest
import torch

from dspark.decoding import gumbel
from dspark.decoding.drafting import DraftNoise
from dspark.decoding.gumbel import checked_argmax, exponentials, exponentials_of
from dspark.decoding.philox import Purpose, philox
from dspark.decoding.sampling import SamplingColumns, draft_distribution
from dspark.types import Cursor, Rule, SamplingParams

ALL_PARAMS = [
    SamplingParams(seed=5, rule=Rule.COUPLED),
    SamplingParams(seed=2**64 - 1, choice=7, rule=Rule.COUPLED),
    SamplingParams(rule=Rule.COUPLED),
]
PLACES = [0, 31, 2**32 - 1]


def test_a_time_is_the_logarithm_of_64_bits_of_its_block() -> None:
    for params, place, row in zip(
        ALL_PARAMS, PLACES, exponentials(ALL_PARAMS, PLACES, 11), strict=True
    ):
        for token in range(11):
            counter = (place, token // 4, Purpose.GUMBEL << 16 | Rule.COUPLED << 24, params.choice)
            words = philox(counter, (params.seed & 0xFFFFFFFF, params.seed >> 32))
            u = (words[token % 4] * 2**32 + words[(token + 1) % 4]) / 2**64
            assert row[token].item() == pytest.approx(-math.log(u), rel=1e-9)


def test_a_few_tokens_have_the_times_of_the_whole_row() -> None:
    whole = exponentials(ALL_PARAMS, PLACES, 103)
    ids = torch.tensor([[0, 5, 102, 7], [3, 2, 1, 0], [99, 98, 97, 50]])
    assert torch.equal(exponentials_of(ALL_PARAMS, PLACES, ids), whole.gather(-1, ids))


def test_an_accelerator_runs_the_same_race() -> None:
    groups = torch.arange(26)[None]
    on_device = gumbel._on_device(gumbel._device_blocks(ALL_PARAMS, PLACES, groups)).flatten(-2)[
        :, :103
    ]
    torch.testing.assert_close(
        on_device, exponentials(ALL_PARAMS, PLACES, 103), rtol=1e-14, atol=0.0
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_runs_the_same_race() -> None:
    ids = torch.randint(0, 103, (3, 9), generator=torch.Generator().manual_seed(2))
    whole = exponentials(ALL_PARAMS, PLACES, 103)
    torch.testing.assert_close(
        exponentials(ALL_PARAMS, PLACES, 103, "cuda").cpu(), whole, rtol=1e-14, atol=0.0
    )
    torch.testing.assert_close(
        exponentials_of(ALL_PARAMS, PLACES, ids.cuda()).cpu(),
        whole.gather(-1, ids),
        rtol=1e-14,
        atol=0.0,
    )


def test_times_are_exponential_and_never_zero_or_endless() -> None:
    e = exponentials(
        [SamplingParams(seed=seed, rule=Rule.COUPLED) for seed in range(40)], [9] * 40, 5000
    )
    assert (e > 0).all()
    assert torch.isfinite(e).all()
    ranks = torch.sort(torch.exp(-e).ravel()).values
    grid = (torch.arange(ranks.numel(), dtype=torch.float64) + 0.5) / ranks.numel()
    assert (
        ranks - grid
    ).abs().max() < 0.004  # Kolmogorov-Smirnov at 200,000 draws; the keys are fixed
    assert gumbel._to_exponentials(np.array([2.0**-65, 1.0])).tolist() == [
        pytest.approx(65 * math.log(2)),
        2.0**-53,
    ]


def test_the_first_one_home_follows_the_distribution() -> None:
    p = torch.tensor([0.5, 0.25, 0.0, 0.2, 0.05], dtype=torch.float64)
    all_params = [SamplingParams(seed=3, rule=Rule.COUPLED)] * 40_000
    ids, lead = checked_argmax(
        p.expand(len(all_params), -1), exponentials(all_params, range(len(all_params)), 5)
    )
    share = torch.bincount(ids, minlength=5) / len(all_params)
    assert (share - p).abs().max() < 0.01  # four standard deviations; the keys are fixed
    assert share[2] == 0
    assert (lead >= 0).all()


def test_a_lead_is_told_in_nats_and_equals_go_to_the_lowest_id() -> None:
    ids, lead = checked_argmax(
        torch.tensor([[0.2, 0.4, 0.4], [0.1, 0.9, 0.0]]),
        torch.tensor([[1.0, 2.0, 2.0], [1.0, 1.0, 1.0]]),
    )
    assert ids.tolist() == [0, 1]
    assert lead.tolist() == [pytest.approx(0.0, abs=1e-6), pytest.approx(math.log(9), abs=1e-6)]
    assert checked_argmax(torch.tensor([[1.0, 0.0]]), torch.ones(1, 2))[1].item() == math.inf


@pytest.mark.parametrize("row", [[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]])
def test_a_row_without_mass_is_an_error(row: list[float]) -> None:
    with pytest.raises(FloatingPointError):
        checked_argmax(torch.tensor([row]), torch.ones(1, 2))


@pytest.mark.parametrize(
    "all_params", [[SamplingParams(choice=2**32)], [SamplingParams(seed=2**64)]]
)
def test_a_name_that_would_spill_is_refused(all_params: list[SamplingParams]) -> None:
    with pytest.raises((ValueError, OverflowError)):
        exponentials(all_params, [3], 8)


def test_a_cohort_of_all_rules_draws_as_each_sequence_alone() -> None:
    vocab = 40
    generator = torch.Generator().manual_seed(1)
    all_params = [SamplingParams(1.0, seed=row, rule=Rule(1 + row % 3)) for row in range(7)] + [
        SamplingParams(0.0, rule=Rule.COUPLED)
    ]
    cursors = [Cursor(row, 1, 2, 30 + row) for row in range(len(all_params))]
    together = DraftNoise(all_params, cursors, 4)
    for slot in range(4):
        logits = torch.randn(len(all_params), vocab, generator=generator) * 2
        ids, probs = draft_distribution(logits, SamplingColumns.of(all_params), 16)
        drawn = together.pick(slot, ids, probs)
        assert drawn[-1] == logits[-1].argmax()
        for row, (params, cursor) in enumerate(zip(all_params, cursors, strict=True)):
            alone = DraftNoise([params], [cursor], 4)
            assert alone.pick(slot, ids[row : row + 1], probs[row : row + 1]).item() == drawn[row]
            if params.rule is Rule.COUPLED and not params.greedy:
                # the verifier's own race over the draft's distribution
                q = torch.zeros(1, vocab).scatter_(-1, ids[row : row + 1], probs[row : row + 1])
                assert (
                    checked_argmax(q, exponentials([params], [cursor.committed_len + slot], vocab))[
                        0
                    ].item()
                    == drawn[row]
                )
