"""Muon (Jordan et al., 2024) in fp32, matrices of one shape side by side.

The library's own orthogonalises in bf16, one matrix at a time, which on a processor without bf16 units costs more
than the forward and backward passes together.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_A, _B, _C = 3.4445, -4.7750, 2.0315  # the quintic of the original, steepest at zero
_ITERATIONS = 5


def orthogonalised(matrices: Tensor) -> Tensor:
    """[n, a, b] -> nearest (semi-)orthogonal matrices, singular values between about 0.7 and 1.2."""
    tall = matrices.shape[1] > matrices.shape[2]
    x: Tensor = matrices.transpose(1, 2) if tall else matrices
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    for _ in range(_ITERATIONS):
        gram = torch.bmm(x, x.transpose(1, 2))
        x = _A * x + torch.bmm(_B * gram + _C * torch.bmm(gram, gram), x)
    out = x.transpose(1, 2) if tall else x
    return out


class Muon(Optimizer):
    """Nesterov momentum, orthogonalised; steps are scaled by sqrt(max(1, rows / columns))."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, *, momentum: float = 0.95, weight_decay: float = 0.0
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
                updates = orthogonalised(torch.stack([self._momentum(p, group["momentum"]) for p in parameters]))
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=scale)

    def _momentum(self, parameter: Tensor, momentum: float) -> Tensor:
        assert parameter.grad is not None
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        state["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
        momentum_now: Tensor = parameter.grad.lerp(state["momentum_buffer"], momentum)
        return momentum_now
