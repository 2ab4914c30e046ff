"""A random drafter small enough to enumerate by eye."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from dspark.model.config import DrafterConfig, HeadType, Kind, ModelType, StageShape
from dspark.model.drafter import BlockDrafter
from dspark.model.families import as_block, fresh_drafter
from dspark.model.family import Drafter
from dspark.model.heads import VanillaHead
from dspark.training.rounds import anchors_at

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


HEADS: tuple[HeadType, ...] = ("none", "vanilla", "gated", "rnn")


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


def text(drafter: Drafter, length: int, seed: int = 5) -> tuple[Tensor, Tensor]:
    """Random taps [T, m*H] and ids [T]."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, drafter.config.vocab_size, (length,), generator=generator)
    return torch.randn(length, drafter.feature_size, generator=generator), ids


def dense(drafter: BlockDrafter, hidden: Tensor, previous: Tensor) -> tuple[Tensor, Tensor | None]:
    """hidden [A, k, H], true tokens before the slots [A, k] -> corrected logits [A, k, V],
    confidence logits [A, k]."""
    head, logits = drafter.markov_head, drafter.base_logits(hidden)
    embedded = head.embed(previous)
    if isinstance(head, VanillaHead):
        logits = logits + head.expand(head.codes(embedded, hidden))
    return logits, drafter.confidence_of(hidden, embedded)


class Walked(NamedTuple):
    """Blocks at A anchors of a text."""

    tokens: Tensor  # [A, k] the likeliest
    logits: Tensor  # [A, k, V]
    confidence: Tensor  # [A, k] logits
    hidden: Tensor  # [A, k, H]


def walked(
    drafter: Drafter,
    features: Tensor,
    ids: Tensor,
    anchors: Tensor,
    *,
    forced: bool = False,
) -> Walked:
    """Of taps [T, m*H] and ids [T]: slots are told the likeliest token before them, or, forced, the
    text's."""
    at = anchors_at(drafter, features, ids, anchors)
    size, previous = drafter.config.block_size, [at.ids]
    proposal = drafter.propose(at, size)
    logits: list[Tensor] = []
    for slot in range(1, size + 1):
        logits.append(proposal.step(previous[-1]))
        previous.append(
            ids[(anchors + slot).clamp(max=len(ids) - 1)] if forced else logits[-1].argmax(dim=-1)
        )
    confidence = proposal.confidence_logits(torch.stack(previous[:-1], dim=1))
    stacked = torch.stack(logits, dim=1)
    return Walked(stacked.argmax(dim=-1), stacked, confidence, proposal.hidden)


def greedy(drafter: Drafter) -> Tensor:
    """[3, k, V + 1] logits and confidence of greedy blocks behind a random text."""
    made = walked(drafter, *text(drafter, 40, seed=3), torch.tensor([5, 20, 39]))
    return torch.cat((made.logits, made.confidence.unsqueeze(-1)), dim=-1)


FAMILIES = [
    (kind, model_type)
    for kind in ("block", "eagle3", "mtp", "lm")
    for model_type in ("qwen3", "gemma4_text")
    if (kind, model_type) != ("lm", "gemma4_text")
] + [("block", "deepseek_v4")]

STAGE = StageShape(
    q_lora_rank=12,
    o_groups=2,
    o_lora_rank=6,
    rope_dim=4,
    window=7,
    streams=3,
    sinkhorn_iters=4,
    stream_eps=1e-6,
    experts=4,
    experts_per_token=2,
    expert_size=20,
    expert_scale=1.5,
    gate_limit=2.0,
)


def family_config(kind: Kind, model_type: ModelType) -> DrafterConfig:
    """Of any family and layer kind; block drafters with all their heads."""
    config = tiny_config("vanilla" if kind == "block" else "none")
    if model_type == "gemma4_text":
        config = dataclasses.replace(
            config,
            model_type="gemma4_text",
            num_key_value_heads=1,
            attention_k_eq_v=True,
            rotary_fraction=0.5,
            logit_softcap=3.0,
        )
    if model_type == "deepseek_v4":
        config = dataclasses.replace(
            config,
            model_type=model_type,
            num_key_value_heads=1,
            intermediate_size=20,
            target_layer_ids=(1, 2, 3),
            stage=STAGE,
        )
    if kind == "block":
        return config
    taps: tuple[int, ...] = {"eagle3": (0, 1, 3), "mtp": (3,), "lm": ()}[kind]
    layers = 2 if kind == "lm" else 1
    config = dataclasses.replace(
        config, kind=kind, num_hidden_layers=layers, target_layer_ids=taps, mask_token_id=-1
    )
    return dataclasses.replace(config, num_target_layers=0) if kind == "lm" else config


def family_drafter(kind: Kind, model_type: ModelType, seed: int = 0) -> Drafter:
    """Random, in evaluation mode."""
    config, generator = family_config(kind, model_type), torch.Generator().manual_seed(seed)
    shape = (config.vocab_size, config.hidden_size)
    ends = None if kind == "lm" else torch.randn(2, *shape, generator=generator) * 0.5
    drafter = fresh_drafter(
        config,
        embedding=None if ends is None else ends[0],
        lm_head=None if ends is None else ends[1],
        generator=generator,
    )
    for name, parameter in drafter.named_parameters():
        if "norm" in name:
            parameter.data.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    for name, buffer in drafter.named_buffers():
        if "scalar" in name:
            buffer.mul_(0.7)
    return drafter.eval()
