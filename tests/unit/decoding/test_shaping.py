"""Penalties, bias and least length, against a plain reading of their definitions and against
transformers' own.

What was drafted counts as said: each row is the target's own at its place, and `test_exact_law`
holds for any rows.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.decoding.acceptance import PackedCase, first_token, judge
from dspark.decoding.sampling import SamplingColumns, distribution
from dspark.decoding.shaping import Shaper, shaped, shaped_last
from dspark.types import NO_Q, Cursor, SamplingParams, SparseQ
from tests.definitions import plainly

VOCAB = 8

ALL_PARAMS = {
    "repetition": SamplingParams(repetition_penalty=1.7),
    "repetition below 1": SamplingParams(repetition_penalty=0.4),
    "presence": SamplingParams(presence_penalty=1.5),
    "frequency": SamplingParams(frequency_penalty=0.9),
    "negative": SamplingParams(presence_penalty=-2.0, frequency_penalty=-0.5),
    "bias": SamplingParams(logit_bias=((0, -3.0), (2, 2.5), (5, 0.25))),
    "least length": SamplingParams(min_tokens=3, stop_token_ids=(1, 6)),
    "everything": SamplingParams(
        temperature=0.8,
        top_p=0.95,
        min_p=0.05,
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.7,
        logit_bias=((2, 1.0), (7, -0.5)),
        min_tokens=2,
        stop_token_ids=(3,),
    ),
}


@pytest.mark.parametrize("name", sorted(ALL_PARAMS))
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_rows_follow_the_definition_with_drafted_tokens_as_said(
    name: str, data: st.DataObject
) -> None:
    ids = st.lists(st.integers(0, VOCAB - 1), max_size=6)
    params = replace(ALL_PARAMS[name], prompt_len=data.draw(st.integers(1, 3)))
    said = [0] * params.prompt_len + data.draw(ids)
    drafted = data.draw(ids)
    logits = torch.from_numpy(
        np.random.default_rng(data.draw(st.integers(0, 99))).normal(0, 3, (len(drafted) + 3, VOCAB))
    )
    before = logits.clone()
    made = shaped(logits, [(2, drafted, Shaper.of(params, said))])
    assert torch.equal(logits, before), "the input is left alone"
    assert torch.equal(made[:2], before[:2]), "other rows are left alone"
    for k in range(len(drafted) + 1):
        wanted = plainly(before[2 + k].tolist(), params, said + drafted[:k])
        np.testing.assert_allclose(made[2 + k].numpy(), wanted, rtol=1e-6, atol=1e-6)
    alone = shaped_last(before[-1:], [(drafted, Shaper.of(params, said))])
    assert torch.equal(alone[0], made[-1])


@pytest.mark.parametrize("name", sorted(ALL_PARAMS))
def test_a_shaper_that_grew_with_its_sequence_equals_a_new_one(name: str) -> None:
    rng, params = np.random.default_rng(3), replace(ALL_PARAMS[name], prompt_len=2)
    said = [int(token) for token in rng.integers(0, 200, 2)]
    logits = torch.from_numpy(rng.normal(0, 3, (5, 200)).astype(np.float32))
    grown = Shaper(params).follow(said)
    for _ in range(60):
        drafted = [int(token) for token in rng.integers(0, 200, 4)]
        assert torch.equal(
            shaped(logits, [(0, drafted, grown)]),
            shaped(logits, [(0, drafted, Shaper(params).follow(said))]),
        ), "a rejected draft leaves no trace"
        said += [*drafted[: rng.integers(0, 4)], int(rng.integers(0, 200))]
        grown.follow(said)
    assert torch.equal(
        shaped(logits[:1], [(0, [], grown.follow(said[:5]))]),
        shaped(logits[:1], [(0, [], Shaper(params).follow(said[:5]))]),
    ), "a shorter sequence is another one"


def test_what_transformers_means_by_repetition_least_length_and_bias() -> None:
    logits_process = pytest.importorskip("transformers.generation.logits_process")
    rng = np.random.default_rng(0)
    prompt, answer = [3, 1, 3], [5, 1]
    rows = torch.from_numpy(rng.normal(0, 4, (1, VOCAB)).astype(np.float32))
    said = torch.tensor([prompt + answer])
    pairs = [
        (
            SamplingParams(repetition_penalty=1.3),
            logits_process.RepetitionPenaltyLogitsProcessor(1.3),
        ),
        (
            SamplingParams(min_tokens=3, stop_token_ids=(2, 4)),
            logits_process.MinNewTokensLengthLogitsProcessor(len(prompt), 3, [2, 4]),
        ),
        (
            SamplingParams(logit_bias=((2, 5.0), (6, -1.5))),
            logits_process.SequenceBiasLogitsProcessor([[[2], 5.0], [[6], -1.5]]),
        ),
    ]
    for params, theirs in pairs:
        asked = replace(params, prompt_len=len(prompt))
        ours = shaped(rows, [(0, [], Shaper.of(asked, prompt + answer))])
        np.testing.assert_allclose(ours.numpy(), theirs(said, rows.clone()).numpy(), rtol=1e-6)


def test_what_transformers_means_by_min_p() -> None:
    logits_process = pytest.importorskip("transformers.generation.logits_process")
    rows = torch.from_numpy(np.random.default_rng(1).normal(0, 2, (20, 50)).astype(np.float32))
    for temperature, min_p in itertools.product((0.5, 1.0, 2.0), (0.02, 0.2, 0.9, 1.0)):
        theirs = torch.softmax(
            logits_process.MinPLogitsWarper(min_p)(None, rows.double() / temperature), dim=-1
        )
        ours = distribution(rows, SamplingColumns.of([SamplingParams(temperature, min_p=min_p)]))
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_half_precision_logits_are_shaped_in_float32(dtype: torch.dtype) -> None:
    params = SamplingParams(logit_bias=((0, 0.001),))
    made = shaped(torch.ones(1, VOCAB, dtype=dtype), [(0, [], Shaper.of(params, [1]))])
    assert made.dtype == torch.promote_types(dtype, torch.float32)
    assert made[0, 0] == pytest.approx(1.001, abs=1e-6)


def test_a_law_that_asks_for_nothing_gets_the_very_same_tensor() -> None:
    assert Shaper.of(SamplingParams(), [1, 2]) is None
    assert (
        Shaper.of(SamplingParams(temperature=0.3, top_k=3, top_p=0.5, min_p=0.1, logprobs=3), [1])
        is None
    )
    logits = torch.zeros(2, VOCAB)
    assert shaped(logits, [(0, [3], None)]) is logits
    long_enough = Shaper.of(
        SamplingParams(min_tokens=2, stop_token_ids=(1,), prompt_len=1), [0, 3, 3]
    )
    assert shaped(logits, [(0, [3], long_enough)]) is logits


def test_a_penalty_next_to_zero_makes_no_infinity() -> None:
    made = shaped(
        torch.full((1, VOCAB), 5.0),
        [(0, [], Shaper.of(SamplingParams(repetition_penalty=1e-38), [1]))],
    )
    assert torch.isfinite(made).all()
    assert distribution(made, SamplingColumns.of([SamplingParams()]))[0, 1] == 1.0


def test_where_a_form_lets_nothing_else_come_the_answer_may_end_early() -> None:
    params = SamplingParams(
        min_tokens=5, stop_token_ids=(1, 2), prompt_len=1, frequency_penalty=1.0
    )
    logits = torch.zeros(2, VOCAB)
    logits[0, [0, *range(2, VOCAB)]] = -torch.inf  # but for 1, which ends
    made = shaped(logits, [(0, [3], Shaper.of(params, [0, 1]))])
    assert made[0, 1] == -1.0
    assert torch.isneginf(made[0, [0, *range(2, VOCAB)]]).all()
    assert torch.isneginf(made[1, [1, 2]]).all()


# -- the rule's own doors --------------------------------------------------------------------------


def test_the_rule_judges_shaped_rows_and_leaves_neighbours_alone() -> None:
    rng = np.random.default_rng(5)
    logits = torch.from_numpy(rng.normal(0, 2, (5, VOCAB)).astype(np.float32))
    plain = PackedCase(Cursor(1, 1, 1, 4), SamplingParams(0.0), 0, (), NO_Q)
    (alone,) = judge(logits[:1], [plain])
    params = SamplingParams(0.0, logit_bias=((6, 100.0),))
    q = SparseQ.sure([6, 6, 2])
    biased = PackedCase(
        Cursor(2, 1, 1, 4), params, 1, (6, 6, 2), q, Shaper.of(params, [1, 2, 3, 4])
    )
    assert judge(logits, [plain, biased]) == [alone, (2, 6)]


def test_the_first_token_is_shaped_too() -> None:
    params = SamplingParams(0.0, min_tokens=1, stop_token_ids=(2,), prompt_len=2)
    logits = torch.arange(VOCAB, dtype=torch.float32).flip(0)
    logits[2] = 99.0
    assert first_token(logits, params, Cursor(1, 1, 0, 2), Shaper.of(params, [5, 5])) == 0
    assert first_token(logits, params, Cursor(1, 1, 0, 3), Shaper.of(params, [5, 5, 0])) == 2


# -- as many ids as may be named -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("biased", "ends"),
    [(65, 0), (0, 64), (0, 65), (30, 40), (64, 1), (1024, 0), (1024, 1024), (129, 129)],
)
def test_as_many_ids_as_may_be_named_are_changed_each_by_its_own(biased: int, ends: int) -> None:
    vocab = 3100
    params = SamplingParams(
        logit_bias=tuple((2 * token, 0.5 + token / 1024) for token in range(biased)),
        min_tokens=2 if ends else 0,
        stop_token_ids=tuple(3 * token for token in range(ends)),
        prompt_len=1,
    )
    row = torch.linspace(-3.0, 3.0, vocab)
    for said in ((5,), (5, 6, 7)):
        (made,) = shaped(row.unsqueeze(0), [(0, (), Shaper.of(params, said))]).tolist()
        assert made == pytest.approx(plainly(row.tolist(), params, said), abs=1e-5)
