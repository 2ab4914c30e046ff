"""What a law means, against a plain reading of its definition; that no draw leaves the support; and
log-probabilities of equals and of no numbers."""

import itertools
import math
import random

import numpy as np
import pytest
import torch

from dspark.decoding import sampling
from dspark.decoding.at_once import drawn
from dspark.decoding.logprobs import prompt_logprobs, token_logprobs
from dspark.decoding.philox import Purpose, uniforms
from dspark.decoding.sampling import (
    SamplingColumns,
    best,
    distribution,
    draft_distribution,
    draft_uniforms,
    draw,
    draw_sparse,
)
from dspark.types import Cursor, SamplingParams
from tests.definitions import plain_law

LAST = 1.0 - 2.0**-53  # the largest draw there is
ALL_PARAMS = [
    SamplingParams(1.0),
    SamplingParams(0.0),
    SamplingParams(0.7, top_p=0.8, top_k=20),
    SamplingParams(1.3, top_k=1),
    SamplingParams(0.5, top_k=2**31),
    SamplingParams(1.0, top_k=41),
    SamplingParams(1.0, top_k=42),
    SamplingParams(1.0, top_p=0.3),
    SamplingParams(1.0, top_p=1.0, top_k=3),
    SamplingParams(2e-5),
    SamplingParams(9e-6),
    SamplingParams(3.0, top_p=1e-9),
    SamplingParams(1.0, min_p=0.1),
    SamplingParams(1.5, min_p=0.02, top_k=7),
    SamplingParams(2.0, min_p=0.05, top_p=0.8, top_k=20),
    SamplingParams(1.0, min_p=1.0),
    SamplingParams(3.0, top_p=0.95),
    SamplingParams(3.0, top_p=0.95, min_p=1e-3),
]


def rows(count: int, vocab: int, seed: int) -> torch.Tensor:
    return torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.fixture(
    params=[sampling.SHALLOW, 4], ids=["all of a row is sorted", "a row is sorted where its cut is"]
)
def shallow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "SHALLOW", request.param)


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize("params", ALL_PARAMS, ids=str)
def test_a_row_follows_the_definition_of_its_law(params: SamplingParams) -> None:
    logits = rows(6, 41, 1)
    logits[:, 0] = -60.0  # so unlikely that a running sum reaches 1 before it
    got = distribution(logits, SamplingColumns.of([params] * 6))
    assert got.dtype == torch.float64
    want = torch.tensor([plain_law(row, params) for row in logits.tolist()], dtype=torch.float64)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-15)
    assert ((got > 0) == (want > 0)).all()


def test_a_row_is_the_same_in_company_on_several_threads() -> None:
    logits, params = rows(3, 50_000, 4), SamplingParams(1.0, top_p=0.9)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together = distribution(logits, SamplingColumns.of([params] * 3))
        for row in range(3):
            assert torch.equal(
                together[row], distribution(logits[row : row + 1], SamplingColumns.of([params]))[0]
            )
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize(
    "all_params",
    [
        ALL_PARAMS,
        [ALL_PARAMS[3], *ALL_PARAMS[7:]],
        # of two that differ in top-p, top-k, temperature or min-p alone
        *([ALL_PARAMS[0], ALL_PARAMS[other]] for other in (7, 8, 9, 12)),
    ],
)
def test_rows_of_a_batch_do_not_touch_each_other(all_params: list[SamplingParams]) -> None:
    logits = rows(len(all_params), 300, 2)
    together = distribution(logits, SamplingColumns.of(all_params))
    for row, params in enumerate(all_params):
        alone = distribution(logits[row : row + 1], SamplingColumns.of([params]))
        assert torch.equal(together[row], alone[0]), params


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize("params", ALL_PARAMS, ids=str)
def test_ties_go_to_the_lowest_id(params: SamplingParams) -> None:
    rng = random.Random(3)
    logits = torch.tensor([[float(rng.randrange(3)) for _ in range(24)] for _ in range(8)])
    got = distribution(logits, SamplingColumns.of([params]))
    want = torch.tensor([plain_law(row, params) for row in logits.tolist()], dtype=torch.float64)
    if params.top_p == 1.0:
        # at a nucleus bound that ties exactly, the last bit of a sum may decide
        assert ((got > 0) == (want > 0)).all()
    for row, probs in zip(logits.tolist(), got.tolist(), strict=True):
        for level in set(row):
            inside = [probs[token] > 0 for token in range(24) if row[token] == level]
            assert inside == sorted(inside, reverse=True), "of equals the lower ids are in"


def test_greedy_takes_the_first_of_equal_maxima_wherever_it_stands() -> None:
    for vocab in (2, 3, 17, 64, 1000, 4096):
        for first in {0, 1, vocab // 2, vocab - 1}:
            logits = torch.zeros(2, vocab)
            logits[:, first:] = 1.0
            assert best(logits).tolist() == [first, first]


def test_the_input_is_left_alone() -> None:
    logits = rows(2, 9, 5).double()
    before = logits.clone()
    distribution(logits, SamplingColumns.of([SamplingParams(0.5, top_k=3)]))
    draft_distribution(logits, SamplingColumns.of([SamplingParams(0.5, top_p=0.5)]), 4)
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    "params", [SamplingParams(min_p=0.1), SamplingParams(top_k=3, top_p=0.9, min_p=0.1)]
)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_cut_row_that_is_not_numbers_looks_nowhere_outside_itself(
    bad: float, params: SamplingParams
) -> None:
    """A card whose index is out of bounds serves nobody again."""
    logits = rows(2, 9, 6)
    logits[1, 4] = bad
    for waits in (True, False):
        probs = distribution(logits, SamplingColumns.of([params]), waits=waits)
        assert torch.isfinite(probs[0]).all()
        assert torch.isnan(probs[1]).all()


def test_a_draw_inverts_the_cumulative_sum() -> None:
    probs = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]], dtype=torch.float64)
    grid = torch.arange(64, dtype=torch.float64) / 64
    ids = draw(probs.expand(64, -1), grid).tolist()
    assert ids == [1] * 16 + [3] * 32 + [4] * 16


@pytest.mark.parametrize("u", [0.0, 2.0**-53, 0.5, LAST])
def test_no_draw_returns_a_token_of_probability_zero(u: float) -> None:
    generator = torch.Generator().manual_seed(7)
    for _ in range(200):
        weights = torch.rand(16, 30, dtype=torch.float64, generator=generator) ** 40
        weights[torch.rand(16, 30, generator=generator) < 0.6] = 0.0
        weights[:, 11] += 1e-300
        ids = draw(weights, torch.full((16,), u, dtype=torch.float64))
        assert (weights.gather(-1, ids[:, None]) > 0).all()


def test_a_sum_that_is_not_monotone_cannot_push_a_draw_off_the_support() -> None:
    # Parallel sums on a device may err in the last bit: whatever id comes out, it moves to a
    # possible one.
    probs = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]] * 5, dtype=torch.float64)
    ids = torch.arange(5).unsqueeze(-1)
    assert sampling.nearest_possible(probs, ids).squeeze(-1).tolist() == [1, 1, 3, 3, 3]


def test_a_distribution_without_mass_is_an_error() -> None:
    for row in ([0.0, 0.0], [math.nan, 1.0]):
        with pytest.raises(FloatingPointError):
            draw(torch.tensor([row], dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(0.8),
        SamplingParams(1.0, top_k=4),
        SamplingParams(0.7, top_p=0.5),
        SamplingParams(0.9, top_p=0.6, top_k=7),
        SamplingParams(1.0, min_p=0.1),
        SamplingParams(1.4, min_p=0.02, top_p=0.7),
        SamplingParams(1.0, min_p=0.3, top_p=0.9, top_k=4),
    ],
)
def test_a_draft_is_cut_as_the_law_as_far_as_its_entries_reach(params: SamplingParams) -> None:
    logits = rows(30, 40, 21)
    whole = distribution(logits, SamplingColumns.of([params]))
    ids, probs = draft_distribution(logits, SamplingColumns.of([params]), 40)
    np.testing.assert_allclose(
        torch.zeros(30, 40).scatter_(-1, ids, probs).numpy(), whole.numpy(), atol=1e-6
    )
    few = 3 if params.min_p else params.top_k or 3  # cut short: the same tokens, renormalised
    ids, probs = draft_distribution(logits, SamplingColumns.of([params]), few)
    assert (ids.shape, probs.shape, probs.dtype) == ((30, few), (30, few), torch.float32)
    part = whole.gather(-1, ids)
    assert torch.equal(part, whole.topk(few).values), "the likeliest, in their order"
    np.testing.assert_allclose(
        probs.numpy(), (part / part.sum(-1, keepdim=True)).numpy(), atol=1e-6
    )


def test_a_nucleus_ends_with_the_token_that_reaches_its_bound() -> None:
    """Four equal tokens have exactly a quarter each, so half of the mass is two of them."""
    probs = distribution(torch.zeros(1, 4), SamplingColumns.of([SamplingParams(1.0, top_p=0.5)]))
    assert probs.tolist() == [[0.5, 0.5, 0.0, 0.0]]


def test_entries_of_a_draft_are_distinct_also_in_mixed_cohorts_with_ties() -> None:
    logits = torch.zeros(4, 30)
    logits[1, 10:] = 1.0
    logits[2, 29] = 2.0
    columns = SamplingColumns.of(
        [SamplingParams(0.0), SamplingParams(0.0), SamplingParams(0.0), SamplingParams(1.0)]
    )
    ids, probs = draft_distribution(logits, columns, 5)
    assert ids[:3, 0].tolist() == [0, 10, 29]
    assert probs[:3].tolist() == [[1.0, 0.0, 0.0, 0.0, 0.0]] * 3
    assert all(len(set(row)) == 5 for row in ids.tolist())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_of_logits_that_are_not_numbers_is_no_numbers_and_its_neighbour_is(
    bad: float, temperature: float
) -> None:
    logits = rows(2, 8, 10)
    logits[0, 3] = bad
    for other in (0.0, 1.0):
        columns = SamplingColumns.of([SamplingParams(temperature), SamplingParams(other)])
        _, probs = draft_distribution(logits, columns, 5)
        _, sound = drawn(probs.double(), torch.full((2,), 0.5, dtype=torch.float64))
        assert sound.tolist() == [False, True]


def test_greedy_drafts_have_one_entry_and_entries_never_exceed_the_vocabulary() -> None:
    logits = rows(3, 8, 10)
    ids, probs = draft_distribution(logits, SamplingColumns.of([SamplingParams(0.0)]), 64)
    assert ids[:, 0].tolist() == best(logits).tolist()
    assert probs.tolist() == [[1.0]] * 3
    assert draft_distribution(logits, SamplingColumns.of([SamplingParams(1.0)]), 64)[0].shape == (
        3,
        8,
    )


def test_a_draft_is_drawn_from_the_very_numbers_that_are_sent() -> None:
    ids = torch.tensor([[7, 3, 5, 1]])
    probs = torch.tensor([[0.5, 0.25, 0.0, 0.15]])  # sums to 0.9: both sides divide by the sum
    total = float(probs.double().sum())
    edges, said = [0.0, 0.5 / total, 0.75 / total, 1.0], [(0.0, 7), (LAST, 1)]
    for (low, high), token in zip(itertools.pairwise(edges), (7, 3, 1), strict=True):
        for u in (low + 1e-12, (low + high) / 2, high - 1e-12):
            said.append((u, token))
    for u, token in said:
        coin = torch.tensor([u], dtype=torch.float64)
        place, sound = drawn(probs.double(), coin)
        assert draw_sparse(ids, probs, coin).tolist() == ids[0, place].tolist() == [token]
        assert sound.all()


def test_draft_draws_of_a_cohort_are_those_of_each_sequence() -> None:
    all_params = [SamplingParams(1.0, seed=5), SamplingParams(0.5, seed=2**64 - 1, choice=3)]
    cursors = [Cursor(1, 1, 4, 90), Cursor(2, 7, 0, 12)]
    together = draft_uniforms(all_params, cursors, 7)
    for row, (params, cursor) in enumerate(zip(all_params, cursors, strict=True)):
        position = cursor.committed_len - 1
        alone = uniforms(
            params.seed,
            params.choice,
            params.rule,
            Purpose.DRAFT,
            cursor.epoch,
            position,
            np.arange(1, 8),
        )
        assert together[row].tolist() == alone.tolist()


def test_equals_go_to_the_lower_id_and_a_row_that_is_not_numbers_is_an_error() -> None:
    flat = torch.zeros(1, 4)
    assert token_logprobs(flat, [3], 20)[0].top_ids == (0, 1, 2, 3), "as many as there are"
    assert prompt_logprobs(flat, [3], 4).ranks.tolist() == [1]
    with pytest.raises(FloatingPointError):
        prompt_logprobs(torch.full((1, 4), math.nan), [0], 1)
