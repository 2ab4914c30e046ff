"""The training forward over many anchors equals the cached, incremental block of each anchor."""

from collections.abc import Callable
from functools import partial

import pytest
import torch

from dspark.model.families import as_block
from dspark.model.family import Drafter
from dspark.training.anchors import draw_anchors, slots_after
from tests.unit.model.tiny import HEADS, dense, family_drafter, text, tiny_drafter, walked

BLOCKS: dict[str, Callable[[], Drafter]] = {
    **{head: partial(tiny_drafter, head) for head in HEADS},
    "gemma4_text": partial(family_drafter, "block", "gemma4_text"),
    "deepseek_v4": partial(family_drafter, "block", "deepseek_v4"),
}


@pytest.mark.parametrize("made", BLOCKS)
@torch.no_grad()
def test_each_training_block_equals_the_served_block(made: str) -> None:
    drafter, generator = as_block(BLOCKS[made]().eval()), torch.Generator().manual_seed(1)
    features, ids = text(drafter, 30)
    anchors = draw_anchors(torch.ones(30, dtype=torch.bool), 9, generator=generator)
    hidden = drafter.forward_hidden(features=features, input_ids=ids, anchors=anchors)
    logits, confidence = dense(drafter, hidden, ids[slots_after(anchors, 5, 30)])
    served = walked(drafter, features, ids, anchors, forced=True)
    assert torch.allclose(served.hidden, hidden, atol=2e-5)
    assert torch.allclose(served.logits, logits, atol=2e-4)
    if confidence is not None:
        assert torch.allclose(served.confidence, confidence, atol=2e-5)


@torch.no_grad()
def test_texts_packed_into_one_row_do_not_see_each_other() -> None:
    drafter, generator = tiny_drafter("vanilla").eval(), torch.Generator().manual_seed(4)
    lengths = (13, 30, 7)
    features, ids = zip(*(text(drafter, n, seed=n) for n in lengths), strict=True)
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
        drafter.forward_hidden(features=taps, input_ids=own, anchors=some)
        for taps, own, some in zip(features, ids, anchors, strict=True)
    ]
    assert torch.allclose(packed, torch.cat(alone), atol=2e-5)
