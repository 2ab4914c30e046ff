"""A target of a given shape and a DSpark drafter for it, with random weights, in bf16: for speed,
not for text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.pair import Pair
from dspark.model.checkpoint import save_drafter
from dspark.model.config import DrafterConfig
from dspark.model.drafter import BlockDrafter

DTYPE = torch.bfloat16
SLOTS = 7


@dataclass(frozen=True)
class PairShape:
    """Shape of the target, Qwen3-8B's by default; the drafter has its widths and `draft_layers`."""

    vocab_size: int = 151_936
    hidden_size: int = 4096
    intermediate_size: int = 12_288
    num_hidden_layers: int = 36
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    head_dim: int = 128
    max_position_embeddings: int = 40_960
    draft_layers: int = 5
    markov_rank: int = 256
    taps: tuple[int, ...] = (1, 9, 17, 25, 33)

    @property
    def fields(self) -> dict[str, Any]:
        """The target's shape as configurations name it, without taps and the drafter's own
        fields."""
        own = ("draft_layers", "markov_rank", "taps")
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in own}


TINY = PairShape(512, 64, 96, 4, 4, 2, 16, 2048, 1, 8, (0, 1, 2))


def write(shape: PairShape, folder: Path) -> Pair:
    """Writes both checkpoints under `folder`, which engines load like any others; made on the
    device."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pair, fields = Pair(folder / "target", folder / "drafter"), shape.fields
    torch.manual_seed(0)
    try:
        torch.set_default_dtype(DTYPE)
        with torch.device(device):
            target = Qwen3ForCausalLM(Qwen3Config(**fields, tie_word_embeddings=False))
            drafter = BlockDrafter(
                DrafterConfig(
                    **{
                        name: value for name, value in fields.items() if name != "num_hidden_layers"
                    },
                    num_hidden_layers=shape.draft_layers,
                    rms_norm_eps=1e-6,
                    rope_theta=1e6,
                    block_size=SLOTS,
                    mask_token_id=shape.vocab_size - 1,
                    target_layer_ids=shape.taps,
                    num_target_layers=shape.num_hidden_layers,
                    markov_rank=shape.markov_rank,
                    markov_head_type="vanilla",
                    enable_confidence_head=True,
                    confidence_head_with_markov=True,
                )
            )
    finally:
        torch.set_default_dtype(torch.float32)
    for module in drafter.modules():
        if isinstance(module, torch.nn.Embedding):  # made without values
            module.reset_parameters()
    target.save_pretrained(pair.target, max_shard_size="4GB")
    # no token ends an answer
    (pair.target / "generation_config.json").write_text("{}", encoding="utf-8")
    save_drafter(drafter, pair.drafter, dtype=DTYPE)
    del target, drafter
    if device.type == "cuda":
        torch.cuda.empty_cache()  # memory for the engines
    return pair
