"""The corners of the rule, what is refused, and that a packed pass judges each sequence as if it
were alone."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dspark.decoding.acceptance import PackedCase, accept_probability, first_token, judge, residual
from dspark.decoding.gumbel import checked_argmax, exponentials
from dspark.decoding.philox import Purpose, uniforms
from dspark.decoding.ratio import slots_of
from dspark.decoding.sampling import (
    SamplingColumns,
    distribution,
    draft_distribution,
    draw,
    draw_sparse,
)
from dspark.decoding.sparse_q import sound_q
from dspark.types import NO_Q, Cursor, Rule, SamplingParams, SparseQ
from tests.forced_coins import judged
from tests.unit.decoding.packed import packed_pass

LAST = 1.0 - 2.0**-53
VOCAB = 50


def f64(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def q_of(*slots: dict[int, float]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([list(slot) for slot in slots]), np.array(
        [list(slot.values()) for slot in slots], np.float32
    )


# -- the two pure functions ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "q", "kept"),
    [
        (0.2, 0.4, 0.5),
        (0.4, 0.2, 1.0),
        (0.3, 0.3, 1.0),
        (0.0, 0.3, 0.0),
        (0.3, 0.0, 1.0),
        (0.0, 0.0, 1.0),
    ],
)
def test_a_token_is_kept_with_the_ratio_and_nothing_over_nothing_is_one(
    p: float, q: float, kept: float
) -> None:
    assert accept_probability(p, q) == kept


def test_a_ratio_beyond_every_float_is_one_without_a_warning() -> None:
    assert accept_probability([1e-300, 1.0], [5e-324, 5e-324]).tolist() == [1.0, 1.0]


def test_without_a_residual_the_target_itself_is_drawn_from() -> None:
    p = f64([0.5, 0.25, 0.25])
    assert torch.equal(residual(p, p.clone()), p)
    assert torch.equal(residual(p, f64([0.6, 0.25, 0.25])), p)


# -- one sequence ----------------------------------------------------------------------------------


def test_an_empty_prefix_is_plain_decoding() -> None:
    probs, coins = f64([0.25, 0.5, 0.25]), (0.0, 0.25, 0.74, LAST)
    for rule in (Rule.TOKEN, Rule.BLOCK):
        assert [judged(rule, probs, [], NO_Q.arrays(), [], u)[1] for u in coins] == [0, 1, 1, 2]


@pytest.mark.parametrize("p_of_it", [0.0, 0.5])
def test_a_token_its_q_cannot_produce_ends_the_prefix_and_is_not_kept(p_of_it: float) -> None:
    # Nothing over nothing must not let an impossible token in, and p over nothing must not let a
    # lie in. The slot counts as not sent, so what follows is drawn from p itself, not from a
    # residual.
    probs = f64([p_of_it, 1.0 - p_of_it, 0.0], [0.0, 0.0, 1.0])
    for u in np.linspace(0.0, LAST, 33):
        accepted, token = judged(Rule.TOKEN, probs, [0], q_of({1: 0.5, 2: 0.5}), [0.0], float(u))
        assert accepted == 0
        assert token == int(draw(probs[:1], torch.tensor([float(u)], dtype=torch.float64)))


def test_the_very_numbers_that_were_sent_are_weighed() -> None:
    rng = np.random.default_rng(3)
    sent = rng.random((2, 3, 5)).astype(np.float32)
    ids = np.array([rng.permutation(9)[:5] for _ in range(6)], np.uint32).reshape(2, 3, 5)
    drafts = ids[:, :, 0].tolist()
    cases = [
        PackedCase(
            Cursor(k, 1, 1, 9), SamplingParams(), 4 * k, drafts[k], SparseQ.of(ids[k], sent[k])
        )
        for k in range(2)
    ]
    slots = slots_of(cases)
    exact = sent.astype(np.float64) / sent.astype(np.float64).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(slots.probs, exact.ravel(), rtol=1e-15)
    np.testing.assert_allclose(slots.q, exact[:, :, 0].ravel(), rtol=1e-15)


# -- what is refused -------------------------------------------------------------------------------


def test_honest_distributions_pass() -> None:
    logits = torch.randn(7, 4000, generator=torch.Generator().manual_seed(0))
    for params, entries in (
        (SamplingParams(0.0), 1),
        (SamplingParams(1.0), 64),
        (SamplingParams(5.0), 4000),
        (SamplingParams(0.7, 0.8, 20), 64),
        (SamplingParams(2e-5), 64),
    ):
        ids, probs = draft_distribution(logits, SamplingColumns.of([params]), entries)
        q = SparseQ.of(ids.numpy(), probs.numpy())
        for u in (0.0, 0.5, LAST):
            drafted = draw_sparse(ids, probs, torch.full((7,), u, dtype=torch.float64)).tolist()
            assert sound_q(*q.arrays(), drafted, 4000)


def test_any_bytes_are_either_refused_or_judged() -> None:
    rng = np.random.default_rng(8)
    logits = torch.from_numpy(rng.normal(0, 2, (3, 8))).float()
    excluded = distribution(logits, SamplingColumns.of([SamplingParams(1.0, top_k=3)])) == 0
    refused = judged = 0
    for _ in range(4000):
        entries = int(rng.integers(1, 5))
        ids = np.array([rng.permutation(8)[:entries] for _ in range(2)], np.uint32)
        probs = rng.dirichlet([1.0] * entries, 2).astype(np.float32)
        payload = bytearray(probs.tobytes() + ids.tobytes())
        if rng.random() < 0.7:
            for _ in range(int(rng.integers(1, 3))):
                payload[int(rng.integers(0, len(payload)))] = int(rng.integers(0, 256))
        q = SparseQ(entries, bytes(payload[probs.nbytes :]), bytes(payload[: probs.nbytes]))
        draft = [int(ids[0, 0]), int(ids[1, -1])]
        if not sound_q(*q.arrays(), draft, 8):
            refused += 1
            continue
        params = SamplingParams(1.0, top_k=3, seed=int(rng.integers(0, 2**63)))
        ((accepted, token),) = judge(logits, [PackedCase(Cursor(1, 1, 1, 9), params, 0, draft, q)])
        assert not any(excluded[k, draft[k]] for k in range(accepted))
        assert not excluded[accepted, token]
        judged += 1
    assert min(refused, judged) > 500


# -- a packed pass ---------------------------------------------------------------------------------

ALL_PARAMS = [
    SamplingParams(1.0, seed=1),
    SamplingParams(0.0, seed=2),
    SamplingParams(0.7, 0.8, 20, seed=3),
    SamplingParams(2.0, seed=2**64 - 1, choice=2),
    SamplingParams(0.0),
    SamplingParams(1.5, 0.9, 0, seed=1),
    SamplingParams(1.0, 1.0, 3, seed=2**63),
]


def at_random(seed: int) -> tuple[torch.Tensor, list[PackedCase]]:
    """A pass of all parameters, in any order and under any rules."""
    rng = np.random.default_rng(seed)
    order = [ALL_PARAMS[number] for number in rng.permutation(len(ALL_PARAMS))]
    rules = [Rule(int(number)) for number in rng.integers(1, 4, len(order))]
    asked = [replace(params, rule=rule) for params, rule in zip(order, rules, strict=True)]
    return packed_pass(seed, asked, VOCAB)


def alone(logits: torch.Tensor, case: PackedCase) -> tuple[int, int]:
    params, slots = case.params, len(case.draft_ids)
    probs = distribution(
        logits[case.first_row : case.first_row + slots + 1], SamplingColumns.of([params])
    )

    def noise(purpose: Purpose, slot: object) -> np.ndarray:
        cursor = case.cursor
        return uniforms(
            params.seed,
            params.choice,
            params.rule,
            purpose,
            cursor.epoch,
            cursor.committed_len - 1,
            slot,
        )  # type: ignore[arg-type]

    if params.rule is Rule.COUPLED or params.greedy:
        first = case.cursor.committed_len  # the position of the first drafted token
        own = [
            int(checked_argmax(row[None], exponentials([params], [first + k], VOCAB))[0])
            for k, row in enumerate(probs)
        ]
        accepted = next((k for k in range(slots) if case.draft_ids[k] != own[k]), slots)
        return accepted, own[accepted]
    told = (
        params.rule,
        probs,
        case.draft_ids,
        case.q.arrays(),
        noise(Purpose.ACCEPT, np.arange(1, slots + 1)),
    )
    accepted, _ = judged(*told, 0.0)
    return judged(*told, float(noise(Purpose.EMIT, accepted + 1)))


def test_a_packed_pass_judges_every_sequence_as_if_it_were_alone() -> None:
    accepted = 0
    for seed in range(40):
        logits, cases = at_random(seed)
        verdicts = judge(logits, cases)
        assert verdicts == [alone(logits, case) for case in cases]
        accepted += sum(count for count, _ in verdicts)
        assert judge(logits, cases[::-1]) == verdicts[::-1]
        for case, verdict in zip(cases, verdicts, strict=True):
            assert judge(logits, [case]) == [verdict]
    assert accepted > 200


@pytest.mark.parametrize(("name", "size"), [("PIECE", 1), ("FEW", 1), ("FEW", 100)])
def test_pieces_of_a_large_pass_change_nothing(
    name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, cases = at_random(3)
    whole = judge(logits, cases)
    monkeypatch.setattr(f"dspark.decoding.ratio.{name}", size)
    assert judge(logits, cases) == whole


def test_half_precision_logits_are_judged_in_float64() -> None:
    logits, cases = at_random(5)
    half = logits.bfloat16()
    assert judge(half, cases) == judge(half.double(), cases)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize(
    "params", [SamplingParams(0.0), *(SamplingParams(1.0, rule=rule) for rule in Rule)]
)
def test_logits_that_are_not_numbers_are_an_error_not_a_token(
    params: SamplingParams, row: int, bad: float
) -> None:
    logits = torch.zeros(2, VOCAB)
    logits[0, 1] = 60.0  # the draft is kept, so that both rows are read
    logits[row, 7] = bad
    q = (
        NO_Q
        if params.rule is Rule.COUPLED
        else SparseQ.of(np.array([[1, 2]]), np.array([[0.5, 0.5]], np.float32))
    )
    with pytest.raises(FloatingPointError):
        judge(logits, [PackedCase(Cursor(1, 1, 1, 9), params, 0, [1], q)])


def test_nobody_to_judge_is_no_verdict() -> None:
    assert judge(torch.zeros(0, VOCAB), []) == []


def test_the_first_token_is_the_emission_of_slot_zero() -> None:
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(6))
    params, cursor = SamplingParams(1.0, seed=9), Cursor(1, 2, 0, 17)
    u = torch.tensor(
        [uniforms(9, 0, Rule.TOKEN, Purpose.EMIT, 2, 16, 0).item()], dtype=torch.float64
    )
    assert first_token(logits, params, cursor) == int(
        draw(distribution(logits[None], SamplingColumns.of([params])), u)
    )
    assert first_token(logits, SamplingParams(0.0), cursor) == int(logits.argmax())


def test_a_coupled_first_token_is_the_one_a_round_would_have_added() -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(6))
    for seed in range(20):
        params = SamplingParams(1.0, seed=seed, rule=Rule.COUPLED)
        ((_, token),) = judge(logits, [PackedCase(Cursor(1, 1, 4, 17), params, 0, [], NO_Q)])
        assert first_token(logits[0], params, Cursor(1, 2, 0, 17)) == token, "as in a hand-over"
