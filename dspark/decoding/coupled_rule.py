"""Gumbel coupling, accepted if equal: the target draws its own token at every position and keeps
drafts that match.

The answer is that of plain decoding with the same noise, whatever was drafted and however much of
it was verified. So no q is sent, drafters need not be trusted, and a seed repeats an answer. A
drafter that draws from its own distribution by the same noise matches with probability >=
(1 - TV) / (1 + TV). Noise and draws: `gumbel`.

A draw with a lead below `NEAR_TIE` may come out otherwise where logits are rounded otherwise; such
positions are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from dspark.decoding.gumbel import NEAR_TIE, checked_argmax, exponentials
from dspark.decoding.slots import PackedCase, target_probs
from dspark.types import Cursor, SamplingParams


def judge_coupled(
    logits: Tensor, cases: Sequence[PackedCase], near_ties: Counter[int] | None = None
) -> list[tuple[int, int]]:
    """(accepted, next token) of sampled sequences: logits [T, V]. Counts near-ties by sequence.

    Row by row: noise over a vocabulary is what this costs, and none is made behind a mismatch.
    """
    verdicts: list[tuple[int, int]] = []
    for case in cases:
        for slot in range(len(case.draft_ids) + 1):
            position = case.cursor.anchor_position + 1 + slot
            noise = exponentials([case.params], [position], logits.shape[-1], logits.device)
            ids, leads = checked_argmax(target_probs(logits, [(case, slot)]), noise)
            if near_ties is not None and leads.item() < NEAR_TIE:
                near_ties[case.cursor.sequence] += 1
            if slot == len(case.draft_ids) or ids.item() != case.draft_ids[slot]:
                break
        verdicts.append((slot, int(ids)))
    return verdicts


def first_coupled(probs: Tensor, params: SamplingParams, cursor: Cursor) -> int:
    """The token after a prefill of cursor.committed_len tokens: probs [1, V]."""
    noise = exponentials([params], [cursor.anchor_position + 1], probs.shape[-1], probs.device)
    return int(checked_argmax(probs, noise)[0])
