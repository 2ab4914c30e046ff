"""The training forward over many anchors equals the cached, incremental block of each anchor."""

from __future__ import annotations

import pytest
import torch

from dspark.model.config import HeadType
from dspark.training.anchors import draw_anchors, slots_after
from dspark.training.rounds import anchors_at
from tests.unit.model.tiny import HEADS, dense, tiny_drafter


@pytest.mark.parametrize("head", HEADS)
@torch.no_grad()
def test_each_training_block_equals_the_served_block(head: HeadType) -> None:
    drafter, generator = tiny_drafter(head).eval(), torch.Generator().manual_seed(1)
    config = drafter.config
    ids = torch.randint(0, config.vocab_size, (30,), generator=generator)
    features = torch.randn(30, config.feature_size, generator=generator)
    anchors = draw_anchors(torch.ones(30, dtype=torch.bool), 9, generator=generator)
    hidden = drafter.forward_hidden(features=features, input_ids=ids, anchors=anchors)
    previous = ids[slots_after(anchors, config.block_size, 30)]
    logits, confidence = dense(drafter, hidden, previous)
    served = drafter.propose(anchors_at(drafter, features, ids, anchors), config.block_size)
    assert torch.allclose(served.hidden, hidden, atol=2e-5)
    walked = torch.stack(
        [served.step(previous[:, slot]) for slot in range(config.block_size)], dim=1
    )
    assert torch.allclose(walked, logits, atol=2e-4)
    if confidence is not None:
        assert torch.allclose(served.confidence_logits(previous), confidence, atol=2e-5)


@torch.no_grad()
def test_texts_packed_into_one_row_do_not_see_each_other() -> None:
    drafter, generator = tiny_drafter("vanilla").eval(), torch.Generator().manual_seed(4)
    config, lengths = drafter.config, (13, 30, 7)
    ids = [
        torch.randint(0, config.vocab_size, (length,), generator=generator) for length in lengths
    ]
    features = [torch.randn(length, config.feature_size, generator=generator) for length in lengths]
    anchors = [
        draw_anchors(torch.ones(n, dtype=torch.bool), 5, generator=generator) for n in lengths
    ]
    starts = torch.tensor([0, *lengths]).cumsum(0)[: len(lengths)]
    packed = drafter.forward_hidden(
        features=torch.cat(features),
        input_ids=torch.cat(ids),
        anchors=torch.cat([a + s for a, s in zip(anchors, starts, strict=True)]),
        first_rows=torch.cat([s.expand(len(a)) for a, s in zip(anchors, starts, strict=True)]),
    )
    alone = [
        drafter.forward_hidden(features=taps, input_ids=text, anchors=some)
        for taps, text, some in zip(features, ids, anchors, strict=True)
    ]
    assert torch.allclose(packed, torch.cat(alone), atol=2e-5)
