"""How likely slot k is to be accepted, given that the slots before it were.

z_k = w . [h_k ; W1[x_{k-1}]] + b, c_k = sigmoid(z_k) (eq. 7, plus a bias). c_k knows the tokens
before slot k and never x_k itself, so thresholding it peeks at nothing. The second half is the
raw embedding row, not the state of a gated or recurrent head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ConfidenceHead(nn.Module):
    """One linear output; `rank` is 0 where only the hidden state is read."""

    def __init__(self, *, hidden_size: int, rank: int, bias: bool = True) -> None:
        super().__init__()
        self.rank = rank
        self.proj = nn.Linear(hidden_size + rank, 1, bias=bias)

    def forward(self, hidden: Tensor, embedded: Tensor | None) -> Tensor:
        """hidden [..., k, H], embedded [..., k, r] rows of W1 or None -> logits [..., k]."""
        inputs = hidden if embedded is None else torch.cat((hidden, embedded), dim=-1)
        logits: Tensor = self.proj(inputs)
        return logits.squeeze(-1)
