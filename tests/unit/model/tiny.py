"""A random drafter small enough to enumerate by eye."""

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dspark.model.config import DrafterConfig, HeadType, Kind, ModelType, StageShape
from dspark.model.drafter import BlockDrafter
from dspark.model.families import as_block, fresh_drafter
from dspark.model.family import Drafter, Proposal
from dspark.model.heads import VanillaHead
from dspark.training.anchors import slots_after
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


def tiny_drafter(head: HeadType) -> BlockDrafter:
    return as_block(family_drafter("block", "qwen3", head))


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


def stepped(
    proposal: Proposal, before: Tensor, size: int, forced: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Tokens before the slots [A, k], the likeliest ones unless told, and logits [A, k, V]."""
    previous, logits = [before], list[Tensor]()
    for slot in range(size):
        logits.append(proposal.step(previous[-1] if forced is None else forced[:, slot]))
        previous.append(logits[-1].argmax(dim=-1))
    said = torch.stack(previous[:-1], dim=1) if forced is None else forced
    return said, torch.stack(logits, dim=1)


class Walked(NamedTuple):
    """Blocks at A anchors of a text."""

    tokens: Tensor  # [A, k] the likeliest
    logits: Tensor  # [A, k, V]
    confidence: Tensor  # [A, k] logits
    hidden: Tensor  # [A, k, H]


def walked(
    drafter: Drafter, features: Tensor, ids: Tensor, anchors: Tensor, *, forced: bool = False
) -> Walked:
    """Of taps [T, m*H] and ids [T]: slots are told the likeliest token before them, or, forced, the
    text's."""
    at, size = anchors_at(drafter, features, ids, anchors), drafter.config.block_size
    proposal = drafter.propose(at, size)
    true = ids[slots_after(anchors, size, len(ids))] if forced else None
    previous, logits = stepped(proposal, at.ids, size, true)
    confidence = proposal.confidence_logits(previous)
    return Walked(logits.argmax(dim=-1), logits, confidence, proposal.hidden)


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


TAPS: dict[Kind, tuple[int, ...]] = {"eagle3": (0, 1, 3), "mtp": (3,), "lm": ()}


def _config(kind: Kind, model_type: ModelType, head: HeadType) -> DrafterConfig:
    more: dict[str, Any] = {"model_type": model_type}
    if model_type == "gemma4_text":
        more |= {"attention_k_eq_v": True, "rotary_fraction": 0.5, "logit_softcap": 3.0}
    if model_type == "deepseek_v4":
        more |= {"intermediate_size": 20, "target_layer_ids": (1, 2, 3), "stage": STAGE}
    if model_type != "qwen3":
        more |= {"num_key_value_heads": 1}
    if kind != "block":
        more |= {"kind": kind, "target_layer_ids": TAPS[kind], "mask_token_id": -1}
        more |= {"num_target_layers": 0} if kind == "lm" else {"num_hidden_layers": 1}
    elif head != "none":
        more |= {"markov_rank": 7, "markov_head_type": head}
        more |= {"enable_confidence_head": True, "confidence_head_with_markov": True}
    return dataclasses.replace(CONFIG, **more)


def family_drafter(kind: Kind, model_type: ModelType, head: HeadType = "vanilla") -> Drafter:
    """Random, in evaluation mode. head: the sequential one of a block drafter."""
    config, generator = _config(kind, model_type, head), torch.Generator().manual_seed(0)
    embedding, lm_head = (
        torch.randn(config.vocab_size, config.hidden_size, generator=generator) for _ in range(2)
    )
    drafter = fresh_drafter(config, embedding=embedding, lm_head=lm_head, generator=generator)
    for name, parameter in drafter.named_parameters():
        if "norm" in name:
            parameter.data.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    for name, buffer in drafter.named_buffers():
        if "scalar" in name:
            buffer.mul_(0.7)
    return drafter.eval()
