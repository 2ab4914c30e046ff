"""How weights move: the published AdamW recipe, or Muon for matrices, which gets further in few steps.

Weights and optimiser states are fp32 whatever the products are computed in. Optimisers go by name, `muon` and `adamw`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn
from torch.optim import AdamW, Optimizer

from dspark.training.muon import Muon
from dspark.training.schedule import cosine, rate
from dspark.training.settings import Settings

_LEVEL = 0.4  # of the run, before the linear schedule falls
_INNER = ("layers.", "fc.", "eh_proj.")


def muon_and_adamw(
    trained: Iterable[nn.Parameter],
    matrices: Iterable[nn.Parameter],
    *,
    matrix_rate: float,
    vector_rate: float,
) -> dict[str, Optimizer]:
    """Muon for the `matrices` among the `trained`, AdamW for the rest."""
    matrices = list(matrices)
    inside = {id(p) for p in matrices}
    rest = [p for p in trained if id(p) not in inside]
    return {
        "muon": Muon(matrices, lr=matrix_rate, momentum=0.95, weight_decay=0.02),
        "adamw": AdamW(rest, lr=vector_rate, betas=(0.9, 0.95), weight_decay=0.0),
    }


def set_rates(optimisers: Mapping[str, Optimizer], peaks: Mapping[str, float], share: float) -> None:
    """Sets every rate to a share of its peak."""
    for name, optimiser in optimisers.items():
        for group in optimiser.param_groups:
            group["lr"] = peaks[name] * share


def make_optimisers(drafter: nn.Module, settings: Settings) -> dict[str, Optimizer]:
    """Those of a drafter's run. Embeddings and heads are no matrices in Muon's sense."""
    trained = {name: p for name, p in drafter.named_parameters() if p.requires_grad}
    if settings.optimizer == "adamw":
        return {"adamw": AdamW(trained.values(), lr=settings.rate, weight_decay=0.0)}
    return muon_and_adamw(
        trained.values(),
        [p for name, p in trained.items() if p.ndim == 2 and name.startswith(_INNER)],
        matrix_rate=settings.matrix_rate,
        vector_rate=settings.rate,
    )


def set_step(optimisers: Mapping[str, Optimizer], settings: Settings, step: int, steps: int) -> None:
    """Sets the rates of a step of a drafter's run."""
    if settings.schedule == "cosine":
        share = cosine(step, steps, warmup=settings.warmup)
    else:
        share = rate(step, steps, warmup=round(settings.warmup * steps), decay_from=_LEVEL)
    set_rates(optimisers, {"adamw": settings.rate, "muon": settings.matrix_rate}, share)
