"""Optimisers and rate schedules: the published AdamW recipe, or Muon for matrices, which learns
more in few steps.

Weights and optimiser states are fp32 whatever the precision of products. Optimisers are named
`muon` and `adamw`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from dspark.training.settings import Settings

_LEVEL = 0.4  # share of the run after which the linear schedule falls
_INNER = ("layers.", "stages.", "fc.", "eh_proj.")
_A, _B, _C = 3.4445, -4.7750, 2.0315  # coefficients of the original's quintic, steepest at zero
_ITERATIONS = 5


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


def orthogonalised(matrices: Tensor) -> Tensor:
    """[n, a, b] -> nearest (semi-)orthogonal matrices, singular values between about 0.7 and
    1.2."""
    tall = matrices.shape[1] > matrices.shape[2]
    x: Tensor = matrices.transpose(1, 2) if tall else matrices
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(_ITERATIONS):
        gram = torch.bmm(x, x.transpose(1, 2))
        x = _A * x + torch.bmm(_B * gram + _C * torch.bmm(gram, gram), x)
    out = x.transpose(1, 2) if tall else x
    return out


class Muon(Optimizer):
    """Nesterov momentum, orthogonalised; steps are scaled by sqrt(max(1, rows / columns)) (Jordan
    et al., 2024).

    It computes in fp32, matrices of one shape in a batch. PyTorch's own takes bf16 and one matrix
    at a time, which on a processor without bf16 units costs more than the forward and backward
    passes together.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every matrix that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for shape, parameters in by_shape.items():
                updates = orthogonalised(
                    torch.stack([self._momentum(p, group["momentum"]) for p in parameters])
                )
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(
                        update, alpha=scale
                    )

    def _momentum(self, parameter: Tensor, momentum: float) -> Tensor:
        assert parameter.grad is not None
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        state["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
        momentum_now: Tensor = parameter.grad.lerp(state["momentum_buffer"], momentum)
        return momentum_now


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
