"""How weights move: the published AdamW recipe, or Muon for matrices, which gets further in few steps.

Weights and optimiser states are fp32 whatever the products are computed in.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from training.schedule import cosine, rate
from training.settings import Settings

_LEVEL = 0.4  # of the run, before the linear schedule falls


def make_optimisers(drafter: nn.Module, settings: Settings) -> dict[str, Optimizer]:
    """By name. Embeddings and heads are no matrices in Muon's sense."""
    trained = {name: p for name, p in drafter.named_parameters() if p.requires_grad}
    if settings.optimizer == "adamw":
        return {"adamw": AdamW(trained.values(), lr=settings.rate, weight_decay=0.0)}
    matrices = {name: p for name, p in trained.items() if p.ndim == 2 and _inner(name)}
    rest = [p for name, p in trained.items() if name not in matrices]
    return {
        "muon": Muon(matrices.values(), lr=settings.matrix_rate, momentum=0.95, weight_decay=0.02),
        "adamw": AdamW(rest, lr=settings.rate, betas=(0.9, 0.95), weight_decay=0.0),
    }


def set_rates(optimisers: Mapping[str, Optimizer], settings: Settings, step: int, steps: int) -> float:
    """Sets the rates of a step; returns their share of the peak."""
    if settings.schedule == "cosine":
        share = cosine(step, steps, warmup=settings.warmup)
    else:
        share = rate(step, steps, warmup=round(settings.warmup * steps), decay_from=_LEVEL)
    peaks = {"adamw": settings.rate, "muon": settings.matrix_rate}
    for name, optimiser in optimisers.items():
        for group in optimiser.param_groups:
            group["lr"] = peaks[name] * share
    return share


def _inner(name: str) -> bool:
    return name.startswith(("layers.", "fc.", "eh_proj."))
