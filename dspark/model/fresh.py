"""A drafter before its first training step.

Nothing is copied from the target's layers: only its embedding and vocabulary head, verbatim, and those stay frozen. A
language model copies nothing at all. Everything else starts as the family's default.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dspark.model.config import DrafterConfig
from dspark.model.families import build_drafter
from dspark.model.family import Drafter
from dspark.model.staged import StagedDrafter


def fresh_drafter(
    config: DrafterConfig,
    *,
    embedding: Tensor | None = None,  # [V, H] the target's input embedding; None for a language model
    lm_head: Tensor | None = None,  # [V, H] the target's output head (the same tensor where tied)
    generator: torch.Generator | None = None,
) -> Drafter:
    """Matrices N(0, initializer_range), norms 1, biases 0; in training mode, fp32, on the CPU."""
    drafter = build_drafter(config)
    with torch.no_grad():
        for module in drafter.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.weight.normal_(0.0, config.initializer_range, generator=generator)
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()
        if isinstance(drafter, StagedDrafter):
            drafter.start(generator)
        if embedding is not None and lm_head is not None:
            drafter.embed_tokens.weight.copy_(embedding)
            drafter.lm_head.weight.copy_(lm_head)
    return drafter.train()
