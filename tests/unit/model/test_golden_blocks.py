"""Released-format checkpoints reproduce the reference's blocks, alone and in a padded batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dspark.model.checkpoint import load_drafter
from dspark.model.families import as_block
from tests.unit.model.golden import DRAFTERS, block_cases
from tests.unit.model.walk import greedy_block

TOLERANCE = 1e-4


@pytest.mark.parametrize("folder", DRAFTERS, ids=lambda path: path.name)
@torch.inference_mode()
def test_one_block_equals_the_reference(folder: Path) -> None:
    drafter = as_block(load_drafter(folder))
    for case in block_cases(folder):
        context = drafter.project(case["context_features"][0])
        keys, values = drafter.context_kv(context, torch.arange(len(context)))
        walk = greedy_block(
            drafter,
            anchor_ids=case["anchor_id"],
            context_k=keys[:, None],
            context_v=values[:, None],
            context_len=torch.tensor([len(context)]),
        )
        assert torch.equal(walk.ids, case["draft_token_ids"])
        torch.testing.assert_close(walk.hidden, case["block_hidden"], atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(walk.base, case["base_logits"], atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(walk.corrected, case["corrected_logits"], atol=TOLERANCE, rtol=0)
        if walk.confidence is None:
            assert "confidence_logits" not in case
        else:
            torch.testing.assert_close(walk.confidence, case["confidence_logits"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("folder", DRAFTERS, ids=lambda path: path.name)
@torch.inference_mode()
def test_a_padded_batch_of_unequal_contexts_equals_single_blocks(folder: Path) -> None:
    drafter, cases = as_block(load_drafter(folder)), block_cases(folder)
    lengths = torch.tensor([case["context_features"].shape[1] for case in cases])
    config = drafter.config
    shape = (config.num_hidden_layers, len(cases), int(lengths.max()), config.num_key_value_heads, config.head_dim)
    keys, values = torch.full(shape, 1e3), torch.full(shape, 1e3)  # loud garbage beyond each context
    for row, case in enumerate(cases):
        order = torch.randperm(int(lengths[row]))  # rows may arrive in any order
        context = drafter.project(case["context_features"][0])
        k, v = drafter.context_kv(context[order], order)
        keys[:, row, order], values[:, row, order] = k, v
    walk = greedy_block(
        drafter,
        anchor_ids=torch.cat([case["anchor_id"] for case in cases]),
        context_k=keys,
        context_v=values,
        context_len=lengths,
    )
    for row, case in enumerate(cases):
        assert torch.equal(walk.ids[row], case["draft_token_ids"][0])
        torch.testing.assert_close(walk.corrected[row], case["corrected_logits"][0], atol=TOLERANCE, rtol=0)


@torch.inference_mode()
def test_a_block_without_any_context_is_finite() -> None:
    drafter = as_block(load_drafter(DRAFTERS[0]))
    config = drafter.config
    for n in (1, 3):
        nothing = torch.empty(config.num_hidden_layers, n, 0, config.num_key_value_heads, config.head_dim)
        walk = greedy_block(
            drafter,
            anchor_ids=torch.arange(n),
            context_k=nothing,
            context_v=nothing,
            context_len=torch.zeros(n, dtype=torch.long),
        )
        assert torch.isfinite(walk.corrected).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_half_precision_stays_close(dtype: torch.dtype) -> None:
    drafter = as_block(load_drafter(DRAFTERS[0], dtype=dtype))
    for case in block_cases(DRAFTERS[0]):
        context = drafter.project(case["context_features"][0])
        keys, values = drafter.context_kv(context, torch.arange(len(context)))
        assert keys.dtype == values.dtype == dtype
        walk = greedy_block(
            drafter,
            anchor_ids=case["anchor_id"],
            context_k=keys[:, None],
            context_v=values[:, None],
            context_len=torch.tensor([len(context)]),
        )
        similarity = torch.cosine_similarity(walk.base.float(), case["base_logits"], dim=-1)
        assert similarity.min() > 0.99
