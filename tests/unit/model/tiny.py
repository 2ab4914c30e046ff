"""A random drafter small enough to enumerate by eye."""

from __future__ import annotations

import dataclasses

import torch

from dspark.model.config import DrafterConfig, HeadType
from dspark.model.drafter import BlockDrafter
from dspark.model.families import as_block
from dspark.model.fresh import fresh_drafter

CONFIG = DrafterConfig(
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=50,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    max_position_embeddings=128,
    block_size=5,
    mask_token_id=49,
    target_layer_ids=(-1, 1, 3),
    num_target_layers=4,
    initializer_range=0.3,
    dtype="float32",
)


def tiny_config(head: HeadType) -> DrafterConfig:
    if head == "none":
        return CONFIG
    return dataclasses.replace(
        CONFIG,
        markov_rank=7,
        markov_head_type=head,
        enable_confidence_head=True,
        confidence_head_with_markov=True,
    )


def tiny_drafter(head: HeadType, seed: int = 0) -> BlockDrafter:
    config, generator = tiny_config(head), torch.Generator().manual_seed(seed)
    shape = (config.vocab_size, config.hidden_size)
    return as_block(
        fresh_drafter(
            config,
            embedding=torch.randn(shape, generator=generator),
            lm_head=torch.randn(shape, generator=generator),
            generator=generator,
        )
    )
