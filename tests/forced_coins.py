"""The ratio rules that are deployed, under coins that a test chooses."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.decoding import ratio
from dspark.decoding.acceptance import PackedCase, judge
from dspark.decoding.philox import Purpose
from dspark.types import NO_Q, Cursor, Rule, SamplingParams, SparseQ


def judged(
    rule: Rule,
    probs: Tensor,  # [l + 1, V] float64, the target's
    draft_ids: Sequence[int],  # [l]
    q: tuple[npt.NDArray[Any], npt.NDArray[Any]],  # ids and probabilities [l, K]
    accept_u: npt.ArrayLike,  # [l] in [0, 1)
    emit_u: float,
) -> tuple[int, int]:
    """(accepted, next token)."""
    sent = SparseQ.of(q[0].astype(np.uint32), q[1].astype(np.float32)) if len(draft_ids) else NO_Q
    case = PackedCase(Cursor(1, 1, 1, 9), SamplingParams(rule=rule), 0, list(draft_ids), sent)
    told = {
        Purpose.ACCEPT: np.asarray(accept_u, np.float64).ravel(),
        Purpose.EMIT: np.array([emit_u]),
    }
    real, ratio.coins = ratio.coins, lambda purpose, *_: told[purpose]
    try:
        return judge(torch.log(probs), [case])[0]
    finally:
        ratio.coins = real
