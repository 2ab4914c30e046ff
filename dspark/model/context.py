"""From tapped target features to drafter context, one row per token.

This is all of the drafter that a verifier needs: two tensors. A row depends on its own
token only, so rows may be computed in any order and on any machine.
"""

from __future__ import annotations

from torch import Tensor, nn

from dspark.model.rotary import RMSNorm


class ContextProjection(nn.Module):
    """C[p] = RMSNorm(W_fc F[p]) (eq. 2). F: [..., m*H] raw taps, C: [..., H]."""

    def __init__(self, *, feature_size: int, hidden_size: int, eps: float, target_layer_ids: tuple[int, ...]) -> None:
        super().__init__()
        self.target_layer_ids = target_layer_ids
        self.fingerprint = ""  # set by the loader; names the tensors, not the file
        self.fc = nn.Linear(feature_size, hidden_size, bias=False)
        self.hidden_norm = RMSNorm(hidden_size, eps)

    def project(self, features: Tensor) -> Tensor:
        """features [..., m*H] -> context [..., H], in the dtype of the weights."""
        context: Tensor = self.hidden_norm(self.fc(features.to(self.fc.weight.dtype)))
        return context

    def forward(self, features: Tensor) -> Tensor:
        return self.project(features)
