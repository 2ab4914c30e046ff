"""Builds the drafter of a config's family, also as it is before its first training step.

Nothing is copied from the target's layers: only its embedding and vocabulary head, verbatim, and
those stay frozen. A language model copies nothing at all. Everything else starts as the family's
default.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dspark.errors import UnsupportedFamily
from dspark.model.chain import Eagle3Drafter, MTPDrafter
from dspark.model.config import DrafterConfig, Kind
from dspark.model.drafter import BlockDrafter
from dspark.model.family import Drafter
from dspark.model.language import LanguageDrafter
from dspark.model.staged import StagedDrafter

_FAMILIES: dict[Kind, type[Drafter]] = {
    "block": BlockDrafter,
    "eagle3": Eagle3Drafter,
    "mtp": MTPDrafter,
    "lm": LanguageDrafter,
}


def build_drafter(config: DrafterConfig) -> Drafter:
    """A drafter with uninitialised weights; see `fresh_drafter` and `checkpoint`."""
    return StagedDrafter(config) if config.stage is not None else _FAMILIES[config.kind](config)


def as_block(drafter: Drafter) -> BlockDrafter:
    """The drafter as a BlockDrafter; UnsupportedFamily if it is neither DSpark nor DFlash."""
    if not isinstance(drafter, BlockDrafter):
        raise UnsupportedFamily(
            f"a block drafter (dspark or dflash) is needed here, this is {drafter.config.family}"
        )
    return drafter


def fresh_drafter(
    config: DrafterConfig,
    *,
    # [V, H] the target's input embedding; None for a language model
    embedding: Tensor | None = None,
    lm_head: Tensor | None = None,  # [V, H] the target's output head (the same tensor where tied)
    generator: torch.Generator | None = None,
) -> Drafter:
    """A drafter to train, fp32 on the CPU: matrices N(0, initializer_range), norms 1, biases 0."""
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
