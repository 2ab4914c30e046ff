"""Packed passes, as verifiers judge them."""

from collections.abc import Sequence

import numpy as np
import torch

from dspark.decoding.acceptance import PackedCase
from dspark.decoding.drafting import DraftNoise
from dspark.decoding.sampling import SamplingColumns, draft_distribution
from dspark.types import NO_Q, Cursor, Rule, SamplingParams, SparseQ


def packed_pass(
    seed: int, all_params: Sequence[SamplingParams], vocab: int, *, slots: int = 5
) -> tuple[torch.Tensor, list[PackedCase]]:
    """Logits and cases of a sequence for each of the parameters: honest blocks of up to `slots`
    tokens, of unequal entries, from a drafter that is nearly the target."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    cases, parts, row = [], [], 0
    for number, params in enumerate(all_params):
        length = int(rng.integers(0, slots + 1))
        logits = torch.randn(length + 1, vocab, generator=generator) * 2
        cursor = Cursor(number, int(rng.integers(1, 5)), 3, int(rng.integers(2, 900)))
        draft_ids, q = [], NO_Q
        if length:
            near = logits[:length] + 0.5 * torch.randn(length, vocab, generator=generator)
            columns = SamplingColumns.of([params])
            ids, probs = draft_distribution(near, columns, int(rng.integers(1, vocab)))
            noise = DraftNoise([params], [cursor], length)
            draft_ids = [
                int(noise.pick(k, ids[k : k + 1], probs[k : k + 1])) for k in range(length)
            ]
            q = NO_Q if params.rule is Rule.COUPLED else SparseQ.of(ids.numpy(), probs.numpy())
        cases.append(PackedCase(cursor, params, row, draft_ids, q))
        parts.append(logits)
        row += length + 1
    return torch.cat(parts), cases
