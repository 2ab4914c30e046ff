"""Acceptance follows the file, confidences are calibrated, and everything repeats."""

from collections.abc import Sequence

import numpy as np
import pytest

from dspark.decoding.sparse_q import sound_q
from dspark.errors import PeerError
from dspark.synthetic.blocks import BlockMaker
from dspark.synthetic.oracle import Keys, SyntheticOracle, beta_quantiles, mix, mix_one
from dspark.synthetic.rows import DTYPE, first_token, read_rows, row_values
from dspark.synthetic.spec import SyntheticSpec, read_spec
from dspark.types import NO_Q, Block, Cursor, Rule, SamplingParams
from dspark.wire.v1 import types_pb2
from tests.synthetic_file import synthetic_document

ACCEPT = {"easy": [0.9, 0.8, 0.7], "hard": [0.5, 0.3, 0.2]}
MANY = 60_000


def spec(*, seed: int = 0, noise: float = 0.0) -> SyntheticSpec:
    more = {"seed": seed, "vocabulary": 1000, "confidence": {"noise": noise}}
    return read_spec(synthetic_document(ACCEPT, concentration=1.0, **more))


def many(oracle: SyntheticOracle) -> tuple[Keys, np.ndarray, np.ndarray]:
    keys = np.array([oracle.key(n % 2, n, 0) for n in range(MANY)], np.uint64)
    return keys, np.arange(MANY) % 2, np.arange(MANY) % 977


def test_the_two_mixes_are_one() -> None:
    values = [0, 1, 12345, (1 << 64) - 1]
    assert mix(np.array(values, np.uint64)).tolist() == [mix_one(value) for value in values]


@pytest.mark.parametrize("mean", [0.0, 0.01, 0.3, 0.74, 0.99, 1.0])
@pytest.mark.parametrize("concentration", [None, 0.05, 1.0, 30.0, 1e4])
def test_quantiles_have_the_mean_and_stay_probabilities(
    mean: float, concentration: float | None
) -> None:
    values = beta_quantiles(mean, concentration)
    assert values.mean() == pytest.approx(mean, abs=1e-12)
    assert values.min() >= 0.0
    assert values.max() <= 1.0


def test_slots_are_kept_as_often_as_the_file_says_given_the_slots_before() -> None:
    oracle = SyntheticOracle(spec())
    keys, domains, anchors = many(oracle)
    said, _ = oracle.draft(keys, domains, anchors)
    right = said == oracle.target(keys[:, None], anchors[:, None] + 1 + np.arange(3))
    for domain, accept in enumerate(ACCEPT.values()):
        alive = domains == domain
        for slot, mean in enumerate(accept):
            count = int(alive.sum())
            deviation = 5 * np.sqrt(mean * (1 - mean) / count)
            assert abs(right[alive, slot].mean() - mean) < deviation, (domain, slot)
            alive = alive & right[:, slot]


def test_confidences_without_noise_are_calibrated_in_every_bin() -> None:
    oracle = SyntheticOracle(spec())
    keys, domains, anchors = many(oracle)
    said, chances = oracle.draft(keys, domains, anchors)
    sure = oracle.confidences(keys, anchors, chances)
    right = said == oracle.target(keys[:, None], anchors[:, None] + 1 + np.arange(3))
    for low in np.arange(0.0, 1.0, 0.1):
        inside = (sure >= low) & (sure < low + 0.1)
        assert inside.sum() > 1000
        assert abs(right[inside].mean() - sure[inside].mean()) < 5 * 0.5 / np.sqrt(inside.sum())


def test_noise_moves_confidences_and_not_acceptance() -> None:
    plain, noisy = SyntheticOracle(spec()), SyntheticOracle(spec(noise=1.0))
    keys, domains, anchors = many(plain)
    said, chances = noisy.draft(keys, domains, anchors)
    assert (said == plain.draft(keys, domains, anchors)[0]).all()
    sure = noisy.confidences(keys, anchors, chances)
    assert ((sure >= 0) & (sure <= 1)).all()
    inside = (chances > 0.05) & (chances < 0.95)
    logits = np.log(sure[inside] / (1 - sure[inside])) - np.log(
        chances[inside] / (1 - chances[inside])
    )
    assert logits.std() == pytest.approx(1.0, abs=0.05)


def blocks_of(
    all_params: list[SamplingParams], slots: Sequence[int] | None = None, seed: int = 0
) -> list[Block]:
    """A block for each of these requests, which stand at places of their own."""
    count = len(all_params)
    return BlockMaker(SyntheticOracle(spec(seed=seed)), 64).make(
        cursors=[Cursor(n, 1, 1, 40 + n) for n in range(count)],
        all_params=all_params,
        first_tokens=[5] * count,
        slots=[0] * count if slots is None else slots,
        watermarks=[39] * count,
    )


def test_blocks_repeat_and_change_with_the_seed() -> None:
    def said(seed: int, request_seed: int = 7) -> tuple[int, ...]:
        return blocks_of([SamplingParams(seed=request_seed)], seed=seed)[0].token_ids

    assert said(0) == said(0)
    assert len({said(0), said(1), said(0, 8)}) == 3


def test_blocks_carry_what_their_ids_were_drawn_from() -> None:
    all_params = [
        SamplingParams(seed=n, temperature=float(n % 2), rule=Rule(1 + n % 3)) for n in range(60)
    ]
    for block, one in zip(blocks_of(all_params, [0, 2] * 30), all_params, strict=True):
        assert len(block.token_ids) == len(block.confidence) == (2 if one.temperature else 3)
        if one.rule is Rule.COUPLED:
            assert block.q == NO_Q
            continue
        ids, probs = block.q.arrays()
        assert block.q.entries == (1 if one.greedy else 64)
        assert sound_q(ids, probs, block.token_ids, 1000)


def test_rows_tell_the_first_token_and_nothing_malformed_passes() -> None:
    data = row_values(np.full(3, 0xABCDEF), 16).tobytes()
    message = types_pb2.TensorChunk(dtype=DTYPE, shape=[3, 16], data=data)
    values = read_rows(message, width=16, max_rows=10)
    assert values.shape == (3, 16)
    assert first_token(values) == 0xABCDEF
    with pytest.raises(PeerError, match=r"rows\.shape"):
        read_rows(message, width=8, max_rows=10)
    message.data = message.data[:-1]
    with pytest.raises(PeerError, match=r"rows\.data"):
        read_rows(message, width=16, max_rows=10)
    with pytest.raises(PeerError, match="not rows of a synthetic verifier"):
        first_token(np.full((1, 16), 0x3F00, np.uint16))  # 0.5
