"""The training forward over many anchors equals the cached, incremental block of each anchor."""

from __future__ import annotations

import pytest
import torch

from dspark.model.config import HeadType
from dspark.training.anchors import draw_anchors
from tests.unit.model.tiny import tiny_drafter

HEADS: tuple[HeadType, ...] = ("none", "vanilla", "gated", "rnn")


@pytest.mark.parametrize("head", HEADS)
@torch.no_grad()
def test_each_training_block_equals_the_served_block(head: HeadType) -> None:
    drafter, generator = tiny_drafter(head).eval(), torch.Generator().manual_seed(1)
    config = drafter.config
    ids = torch.randint(0, config.vocab_size, (3, 30), generator=generator)
    features = torch.randn(3, 30, config.feature_size, generator=generator)
    loss_mask = torch.ones(3, 30)
    loss_mask[0, :24] = 0  # fewer candidates than anchors: this row gets dummies
    anchors = draw_anchors(loss_mask, 9, generator=generator)
    assert not anchors.keep.all()
    out = drafter.forward_blocks(
        features=features, input_ids=ids, anchor_positions=anchors.positions, block_keep_mask=anchors.keep
    )
    assert torch.isfinite(out.corrected_logits).all()
    previous = drafter.previous_ids(ids, anchors.positions)
    for row, column in anchors.keep.nonzero().tolist():
        a = int(anchors.positions[row, column])
        keys, values = drafter.context_kv(drafter.project(features[row, :a]), torch.arange(a))
        hidden = drafter.block_hidden(
            anchor_ids=ids[row, a : a + 1],
            anchor_positions=torch.tensor([a]),
            context_k=keys[:, None],
            context_v=values[:, None],
            context_len=torch.tensor([a]),
        )
        assert torch.allclose(hidden[0], out.hidden[row, column], atol=2e-5)
        state, logits = drafter.markov_head.initial_state(1, hidden), drafter.base_logits(hidden)
        for slot in range(config.block_size):
            bias, state = drafter.markov_head.bias(state, previous[row, column, slot : slot + 1], hidden[:, slot])
            walked = logits[0, slot] if bias is None else logits[0, slot] + bias[0]
            assert torch.allclose(walked, out.corrected_logits[row, column, slot], atol=2e-4)
        confidence = drafter.confidence_logits(hidden, previous[row, column][None])
        if confidence is None:
            assert out.confidence_logits is None
        else:
            assert out.confidence_logits is not None
            assert torch.allclose(confidence[0], out.confidence_logits[row, column], atol=2e-5)


@torch.no_grad()
def test_context_grown_row_by_row_equals_context_made_at_once() -> None:
    drafter = tiny_drafter("vanilla").eval()
    features = torch.randn(6, drafter.config.feature_size, generator=torch.Generator().manual_seed(2))
    whole = drafter.context_kv(drafter.project(features), torch.arange(6))
    rows = [drafter.context_kv(drafter.project(features[p : p + 1]), torch.tensor([p])) for p in range(6)]
    for side in (0, 1):
        assert torch.allclose(torch.cat([row[side] for row in rows], dim=1), whole[side], atol=1e-5)


def test_serving_first_does_not_spoil_training_afterwards() -> None:
    drafter = tiny_drafter("vanilla")
    with torch.inference_mode():
        drafter.context_kv(torch.randn(2, drafter.config.hidden_size), torch.arange(2))
    out = drafter(
        features=torch.randn(1, 8, drafter.config.feature_size),
        input_ids=torch.arange(8)[None],
        anchor_positions=torch.tensor([[3]]),
        block_keep_mask=torch.tensor([[True]]),
    )
    out.corrected_logits.sum().backward()
    frozen = {name for name, parameter in drafter.named_parameters() if parameter.grad is None}
    assert frozen == {
        "embed_tokens.weight",
        "lm_head.weight",
        "confidence_head.proj.weight",
        "confidence_head.proj.bias",
    }


@torch.no_grad()
def test_texts_packed_into_one_row_do_not_see_each_other() -> None:
    drafter, generator = tiny_drafter("vanilla").eval(), torch.Generator().manual_seed(4)
    config, lengths = drafter.config, (13, 30, 7)
    ids = [torch.randint(0, config.vocab_size, (length,), generator=generator) for length in lengths]
    features = [torch.randn(length, config.feature_size, generator=generator) for length in lengths]
    anchors = [draw_anchors(torch.ones(1, n), 5, generator=generator).positions[0] for n in lengths]
    starts = torch.tensor([0, *lengths]).cumsum(0)[: len(lengths)]
    packed = drafter.forward_hidden(
        features=torch.cat(features)[None],
        input_ids=torch.cat(ids)[None],
        anchor_positions=torch.cat([a + s for a, s in zip(anchors, starts, strict=True)])[None],
        block_keep_mask=torch.ones(1, sum(map(len, anchors)), dtype=torch.bool),
        first_rows=torch.cat([s.expand(len(a)) for a, s in zip(anchors, starts, strict=True)])[None],
    )[0]
    alone = [
        drafter.forward_hidden(
            features=features[n][None],
            input_ids=ids[n][None],
            anchor_positions=anchors[n][None],
            block_keep_mask=torch.ones(1, len(anchors[n]), dtype=torch.bool),
        )[0]
        for n in range(len(lengths))
    ]
    assert torch.allclose(packed, torch.cat(alone), atol=2e-5)
