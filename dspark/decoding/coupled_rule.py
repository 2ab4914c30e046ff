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
from dspark.decoding.slots import PackedCase, Spot, target_probs
from dspark.types import Cursor, SamplingParams

AHEAD = 4  # rows drawn at a time: few are wasted, and each call has a cost


def judge_coupled(
    logits: Tensor, cases: Sequence[PackedCase], near_ties: Counter[int] | None = None
) -> list[tuple[int, int]]:
    """(accepted, next token) of sampled sequences: logits [T, V]. Counts near-ties by sequence."""
    verdicts: list[tuple[int, int]] = [(0, -1)] * len(cases)
    matching = list(range(len(cases)))
    begun = 0  # slots that every remaining sequence has passed
    while matching:
        step = max(AHEAD // len(matching), 1)
        spots = [
            (cases[index], slot)
            for index in matching
            for slot in range(begun, min(begun + step, len(cases[index].draft_ids) + 1))
        ]
        drawn = iter(_draws(logits, spots))
        still = []
        for index in matching:
            case, matched = cases[index], True
            for slot in range(begun, min(begun + step, len(case.draft_ids) + 1)):
                token, lead = next(drawn)
                if not matched:
                    continue
                if lead < NEAR_TIE and near_ties is not None:
                    near_ties[case.cursor.sequence] += 1
                verdicts[index] = (slot, token)
                matched = slot < len(case.draft_ids) and token == case.draft_ids[slot]
            if matched:
                still.append(index)
        matching, begun = still, begun + step
    return verdicts


def first_coupled(probs: Tensor, params: SamplingParams, cursor: Cursor) -> int:
    """The token after a prefill of cursor.committed_len tokens: probs [1, V]."""
    noise = exponentials([params], [cursor.anchor_position + 1], probs.shape[-1], probs.device)
    return int(checked_argmax(probs, noise)[0])


def _draws(logits: Tensor, spots: Sequence[Spot]) -> list[tuple[int, float]]:
    """The draw at each spot: (token, its lead)."""
    positions = [case.cursor.anchor_position + 1 + slot for case, slot in spots]
    noise = exponentials(
        [case.params for case, _ in spots], positions, logits.shape[-1], logits.device
    )
    ids, leads = checked_argmax(target_probs(logits, spots), noise)
    return list(zip(ids.tolist(), leads.tolist(), strict=True))
