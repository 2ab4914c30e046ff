"""Chains at some anchors are the published chains, position by position."""

from __future__ import annotations

import pytest
import torch

from training.anchors import draw_anchors, label_blocks
from training.eagle3_loss import chain_loss
from training.lab import drafters
from training.lab.chain_blocks import chain_block_loss, chain_hidden
from training.lab.plan import Run
from training.lab.target import Shape, build

SHAPE = Shape(vocabulary=64, hidden=32, mlp=48, heads=2, kv_heads=1, head_dim=16, layers=6)


@pytest.fixture(name="eagle")
def fixture_eagle():  # type: ignore[no-untyped-def]
    target = build(SHAPE, layers=SHAPE.layers, seed=0)
    drafter = drafters.as_chain(drafters.build(Run("eagle3", layers=1, block=4), target))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    features = torch.randn(2, 20, 5 * 32, generator=generator)
    ids = torch.randint(64, (2, 20), generator=generator)
    return target, drafter, features, ids


def test_hidden_states_equal_those_of_the_chain_that_is_unrolled_everywhere(eagle) -> None:  # type: ignore[no-untyped-def]
    _, drafter, features, ids = eagle
    everywhere = torch.stack(drafter.forward_steps(features=features, input_ids=ids, steps=4), dim=2)  # [B, T, k, H]
    anchors = torch.tensor([[1, 5, 15], [3, 4, 12]])
    some = chain_hidden(drafter, features=features, input_ids=ids, anchors=anchors)
    index = torch.arange(2).unsqueeze(-1)
    torch.testing.assert_close(some, everywhere[index, anchors - 1], rtol=1e-4, atol=1e-5)


def test_the_loss_at_every_anchor_is_the_published_one(eagle) -> None:  # type: ignore[no-untyped-def]
    target, drafter, features, ids = eagle
    supervised = torch.ones(2, 20, dtype=torch.int64)
    supervised[:, 0] = 0
    last = torch.randn(2, 20, 32, generator=torch.Generator().manual_seed(2))
    head = target.lm_head.weight.detach()
    anchors = draw_anchors(supervised, 20, generator=torch.Generator().manual_seed(0))
    labels = label_blocks(input_ids=ids, loss_mask=supervised, anchors=anchors, block_size=4)
    ours = chain_block_loss(
        drafter,
        features=features,
        input_ids=ids,
        anchors=anchors,
        labels=labels,
        last_hidden=last,
        target_head=head,
    )
    ours.objective.backward()
    mine = {name: p.grad.clone() for name, p in drafter.named_parameters() if p.grad is not None}
    drafter.zero_grad()
    # The published mask is that of the position two before the predicted one.
    judged = torch.zeros_like(supervised)
    judged[:, :18] = 1
    steps = chain_loss(
        drafter, features=features, input_ids=ids, loss_mask=judged, last_hidden=last, target_head=head, steps=4
    )
    steps.objective.backward()
    assert float(ours.sums.denominator) == 2 * 18
    torch.testing.assert_close(ours.sums.slots, steps.sums.slots)
    torch.testing.assert_close(ours.sums.tau, steps.sums.tau)
    torch.testing.assert_close(ours.objective, steps.objective, rtol=1e-4, atol=1e-4)
    for name, parameter in drafter.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(mine[name], parameter.grad, rtol=1e-3, atol=1e-4)
