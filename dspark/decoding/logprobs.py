"""Log-probabilities of committed tokens, as a client may ask for them.

They are of the target's own distribution: log-softmax of the raw logits in float32, before
penalties, bias, temperature and truncation, which is what vLLM tells by default. So they do not
depend on how a token was chosen. Where an answer has a form, of the logits that it left: tokens
that may not come are not told of.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dspark.types import ScoredPrompt, ScoredToken

ROWS = 32  # whose probabilities over a whole vocabulary are held at one time


@torch.inference_mode()
def token_logprobs(logits: Tensor, token_ids: Sequence[int], top: int) -> tuple[ScoredToken, ...]:
    """logits [m, V] of the rows that m tokens were committed from -> what to tell of each, with the
    `top` likeliest. Fewer where fewer may come."""
    told = _ranked(logits, token_ids, top)
    columns = (told.logprobs.tolist(), told.top_ids.tolist(), told.top_logprobs.tolist())
    # those that may not are ranked last
    may_come = np.isfinite(told.top_logprobs).sum(axis=-1).tolist()
    return tuple(
        ScoredToken(logprob, tuple(ids[:count]), tuple(values[:count]))
        for logprob, ids, values, count in zip(*columns, may_come, strict=True)
    )


@torch.inference_mode()
def prompt_logprobs(logits: Tensor, next_ids: Sequence[int], top: int) -> ScoredPrompt:
    """logits [m, V] of m rows of a prompt and the token that stands behind each.
    FloatingPointError: not numbers."""
    parts = [
        _ranked(logits[first : first + ROWS], next_ids[first : first + ROWS], top)
        for first in range(0, len(next_ids), ROWS)
    ]
    if not all(np.isfinite(part.logprobs).all() for part in parts):
        raise FloatingPointError("logits are not numbers")
    return ScoredPrompt.joined(parts, top)


def _ranked(logits: Tensor, next_ids: Sequence[int], top: int) -> ScoredPrompt:
    logs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    chosen = logs.gather(-1, torch.tensor(next_ids, device=logs.device).unsqueeze(-1))
    likeliest = logs.topk(min(top, logs.shape[-1]), dim=-1)
    ids, values = likeliest.indices.cpu().numpy(), likeliest.values.cpu().numpy()
    order = np.lexsort((ids, -values))  # equals by id
    return ScoredPrompt(
        chosen.squeeze(-1).cpu().numpy(),
        (1 + (logs > chosen).sum(-1)).cpu().numpy().astype(np.uint32),
        np.take_along_axis(ids, order, -1).astype(np.uint32),
        np.take_along_axis(values, order, -1),
    )
