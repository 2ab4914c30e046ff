"""Log-probabilities of committed tokens and of prompts, as a client may request them.

They are of the target's own distribution: log-softmax of the raw logits in float32, before
penalties, bias, temperature and truncation, which is vLLM's default. So they do not depend on how a
token was chosen. If an answer has a form, they are of the masked logits: forbidden tokens are not
reported.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dspark.types import ScoredPrompt, ScoredToken

ROWS = 32  # rows whose probabilities over the whole vocabulary are in memory at a time


@torch.inference_mode()
def token_logprobs(logits: Tensor, token_ids: Sequence[int], top: int) -> tuple[ScoredToken, ...]:
    """logits [m, V] of the rows that m tokens were committed from -> the log-probabilities of each,
    with the `top` likeliest tokens, fewer where fewer are allowed."""
    told = _ranked(logits, token_ids, top)
    columns = (told.logprobs.tolist(), told.top_ids.tolist(), told.top_logprobs.tolist())
    # forbidden tokens rank last
    may_come = np.isfinite(told.top_logprobs).sum(axis=-1).tolist()
    return tuple(
        ScoredToken(logprob, tuple(ids[:count]), tuple(values[:count]))
        for logprob, ids, values, count in zip(*columns, may_come, strict=True)
    )


@torch.inference_mode()
def prompt_logprobs(logits: Tensor, next_ids: Sequence[int], top: int) -> ScoredPrompt:
    """Log-probabilities of a prompt: logits [m, V] of m rows, and the token behind each.
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
    order = np.lexsort((ids, -values))  # ties by id
    return ScoredPrompt(
        chosen.squeeze(-1).cpu().numpy(),
        (1 + (logs > chosen).sum(-1)).cpu().numpy().astype(np.uint32),
        np.take_along_axis(ids, order, -1).astype(np.uint32),
        np.take_along_axis(values, order, -1),
    )
