"""The worth of a block is the mean of what the rules themselves decide, and one pass gives the laws
of many."""

import numpy as np
import pytest
import torch

from benchmarks.ablations.equal_blocks import committed, probs_behind
from dspark.decoding.gumbel import checked_argmax, exponentials
from dspark.types import Block, Cursor, Rule, SamplingParams, SparseQ
from tests.architectures.families import FAMILIES, model_of
from tests.forced_coins import judged

VOCAB, SLOTS, DRAWS = 6, 4, 4000
AT = Cursor(1, 1, 1, 11)


def _block(rng: np.random.Generator) -> tuple[Block, torch.Tensor]:
    q = rng.dirichlet(np.ones(VOCAB), SLOTS).astype(np.float32)
    ids = np.repeat(np.arange(VOCAB, dtype=np.uint32)[None, :], SLOTS, axis=0)
    drawn = tuple(int(rng.choice(VOCAB, p=row / row.sum())) for row in q.astype(np.float64))
    probs = torch.from_numpy(rng.dirichlet(np.ones(VOCAB), SLOTS + 1))
    return Block(AT, drawn, q=SparseQ.of(ids, q)), probs


@pytest.mark.parametrize("rule", [Rule.TOKEN, Rule.BLOCK])
def test_the_worth_is_the_mean_over_the_coins(rule: Rule) -> None:
    rng = np.random.default_rng(7)
    for _ in range(3):
        block, probs = _block(rng)
        coins = rng.random((DRAWS, SLOTS))
        q = block.q.arrays()
        kept = [judged(rule, probs, block.token_ids, q, coin, 0.5)[0] for coin in coins]
        error = np.std(kept) / len(kept) ** 0.5
        assert committed(
            block, probs, SamplingParams(rule=rule), AT.anchor_position
        ) == pytest.approx(1 + np.mean(kept), abs=4.5 * error + 1e-9)


def test_without_coins_the_leading_agreement_counts() -> None:
    _, probs = _block(np.random.default_rng(2))
    said = probs.argmax(-1).tolist()
    agreeing = Block(AT, (said[0], said[1], (said[2] + 1) % VOCAB, said[3]))
    assert committed(agreeing, probs, SamplingParams(0.0), 10) == 3.0
    params = SamplingParams(rule=Rule.COUPLED, seed=5)
    drawn = checked_argmax(probs, exponentials([params] * 5, [11, 12, 13, 14, 15], VOCAB))[
        0
    ].tolist()
    assert committed(Block(AT, tuple(drawn[:4])), probs, params, 10) == 5.0


def test_one_pass_over_many_blocks_says_what_a_pass_over_each_says() -> None:
    model = model_of(FAMILIES["qwen3"])
    tokens = [3, 1, 4, 1, 5]
    blocks = [(9, 2, 6), (9, 2, 7), (8,)]
    params = SamplingParams(1.0, top_k=20)
    together = probs_behind(model, tokens, blocks, params)
    for block, probs in zip(blocks, together, strict=True):
        (alone,) = probs_behind(model, [*tokens, *block], [()], params)
        assert probs.shape == (len(block) + 1, 128)
        torch.testing.assert_close(probs[-1:], alone, rtol=1e-4, atol=1e-6)
        with torch.inference_mode():
            logits = model(torch.tensor([[*tokens, *block]])).logits[0, len(tokens) - 1 :]
        assert probs.argmax(-1).tolist() == logits.argmax(-1).tolist()
