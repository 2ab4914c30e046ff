"""A random target over a handful of tokens, and a DSpark drafter near enough that most drafts are
kept.

The drafter's sequential head holds the target's mean logits by the token before. Its block is
random, scaled down by `BLOCK_SHARE`: drafts are refused often enough that a wrong correction shows.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from dspark.model.checkpoint import save_drafter
from dspark.model.config import DrafterConfig
from dspark.model.drafter import BlockDrafter
from dspark.model.families import fresh_drafter
from dspark.model.heads import VanillaHead

HIDDEN, LAYERS, BLOCK = 32, 2, 3
SPREAD = 0.08  # of the weights: laws depend on what came before
BLOCK_SHARE = 0.4


def write_tiny_pair(folder: Path, *, vocabulary: int, seed: int) -> tuple[Path, Path]:
    """(target, drafter) folders under `folder`."""
    torch.manual_seed(seed)
    shape = {
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
    }
    config = Qwen3Config(
        **shape,
        num_hidden_layers=LAYERS,
        initializer_range=SPREAD,
        tie_word_embeddings=False,
        dtype="float32",
    )
    target = Qwen3ForCausalLM(config).eval()
    target_folder, drafter_folder = folder / "target", folder / "drafter"
    target.save_pretrained(target_folder)
    # No stop token: every answer has its full length.
    (target_folder / "generation_config.json").write_text("{}", encoding="utf-8")
    drafter_config = DrafterConfig(
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        vocab_size=vocabulary,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        max_position_embeddings=64,
        block_size=BLOCK,
        mask_token_id=vocabulary - 1,
        target_layer_ids=(0,),
        num_target_layers=LAYERS,
        markov_rank=vocabulary,
        markov_head_type="vanilla",
        enable_confidence_head=True,
        confidence_head_with_markov=True,
        initializer_range=SPREAD,
        dtype="float32",
    )
    drafter = fresh_drafter(
        drafter_config,
        embedding=target.model.embed_tokens.weight.detach(),
        lm_head=target.lm_head.weight.detach(),
        generator=torch.Generator().manual_seed(seed),
    )
    assert isinstance(drafter, BlockDrafter)
    assert isinstance(drafter.markov_head, VanillaHead)
    with torch.no_grad():
        drafter.norm.weight.fill_(BLOCK_SHARE)
        drafter.markov_head.markov_w1.weight.copy_(torch.eye(vocabulary))
        drafter.markov_head.markov_w2.weight.copy_(_mean_logits(target, vocabulary).T)
    save_drafter(drafter, drafter_folder)
    return target_folder, drafter_folder


def _mean_logits(target: Qwen3ForCausalLM, vocabulary: int) -> torch.Tensor:
    """[V, V]: by the token before, over random text."""
    ids = torch.randint(vocabulary, (64, 16), generator=torch.Generator().manual_seed(1))
    logits = target(ids).logits
    return torch.stack([logits[ids == token].mean(dim=0) for token in range(vocabulary)])
