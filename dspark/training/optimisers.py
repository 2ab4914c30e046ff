"""Optimisers and rate schedules: the published AdamW recipe, or Muon for matrices, which learns
more in few steps.

Weights and optimiser states are fp32 whatever the precision of products; PyTorch's Muon
orthogonalises in bf16. Optimisers are named `muon` and `adamw`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from dspark.training.settings import Settings

_LEVEL = 0.4  # share of the run after which the linear schedule falls
_INNER = ("layers.", "stages.", "fc.", "eh_proj.")


def make_optimisers(drafter: nn.Module, settings: Settings) -> dict[str, Optimizer]:
    """The optimisers of a run, by name. Muon takes no embeddings and no heads."""
    trained = {name: p for name, p in drafter.named_parameters() if p.requires_grad}
    if settings.optimizer == "adamw":
        return {"adamw": AdamW(trained.values(), lr=settings.rate, weight_decay=0.0)}
    matrices = {name: p for name, p in trained.items() if p.ndim == 2 and name.startswith(_INNER)}
    rest = [p for name, p in trained.items() if name not in matrices]
    return {
        "muon": Muon(matrices.values(), lr=settings.matrix_rate, momentum=0.95, weight_decay=0.02),
        "adamw": AdamW(rest, lr=settings.rate, betas=(0.9, 0.95), weight_decay=0.0),
    }


def set_step(
    optimisers: Mapping[str, Optimizer], settings: Settings, step: int, steps: int
) -> None:
    """Sets the learning rates of one of a run's `steps`."""
    share = (cosine if settings.schedule == "cosine" else linear)(
        step, steps, round(settings.warmup * steps)
    )
    peaks = {"adamw": settings.rate, "muon": settings.matrix_rate}
    for name, optimiser in optimisers.items():
        for group in optimiser.param_groups:
            group["lr"] = peaks[name] * share


def cosine(step: int, steps: int, rising: int) -> float:
    """Share of the peak learning rate of the published recipe: linear over the first W = `rising`
    steps (step t: (t + 1) / W), then a cosine to 0 over the rest."""
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def linear(step: int, steps: int, rising: int) -> float:
    """Share of the peak learning rate: linear over the first `rising` steps, level, then linear to
    0 from `_LEVEL` of the run."""
    start = _LEVEL * steps
    falling = 1.0 if step < start else (steps - step) / max(1.0, steps - start)
    return min(1.0, (step + 1) / max(1, rising)) * falling
