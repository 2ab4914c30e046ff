"""The sequential walk over a block: slot by slot, each told the token drawn before it, then the confidence.

Invariant 3, q sent is q sampled: a slot's token is drawn from the very float32 numbers that go into the block, cut to
the most likely entries and renormalised. Greedy sequences send one entry, coupled ones none. Confidence of slot k knows
the tokens before slot k and never its own, and leaves here calibrated.

Symbols: n sequences, k slots, V vocabulary, K entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.decoding.drafting import DraftNoise
from dspark.decoding.sampling import LawColumns, draft_distribution, largest
from dspark.decoding.shaping import Shaper, shaped_last
from dspark.model.calibration import Bucket, Calibration, RuleName
from dspark.model.family import Proposal
from dspark.types import Cursor, Rule, SamplingParams

NAMES: dict[Rule, RuleName] = {Rule.TOKEN: "token", Rule.BLOCK: "block", Rule.COUPLED: "coupled"}


class SampledBlock(NamedTuple):
    """What was drawn for every slot of every sequence."""

    token_ids: npt.NDArray[np.int64]  # [n, k]
    q_ids: npt.NDArray[np.uint32]  # [n, k, K]
    q_probs: npt.NDArray[np.float32]  # [n, k, K]
    confidence: npt.NDArray[np.float32]  # [n, k]


@torch.inference_mode()
def sample_block(
    proposal: Proposal,
    calibration: Calibration,
    anchor_ids: Tensor,  # [n]
    laws: Sequence[SamplingParams],
    cursors: Sequence[Cursor],
    *,
    slots: int,
    vocab_size: int,
    entries: int,
    shapers: Sequence[Shaper | None] | None = None,  # [n], have counted what comes before the anchors
) -> SampledBlock:
    """Draws k tokens for each of n sequences."""
    columns = LawColumns.of(laws, anchor_ids.device)
    noise = None if columns.all_greedy else DraftNoise(laws, cursors, slots, vocab_size, anchor_ids.device)
    previous = [anchor_ids]
    ids: list[Tensor] = []
    probs: list[Tensor] = []
    for slot in range(slots):
        logits = proposal.step(previous[-1])
        if shapers is not None:
            said = torch.stack(previous, dim=1).tolist()
            logits = shaped_last(logits, zip(said, shapers, strict=True))
        if noise is None:
            token = largest(logits)
        elif noise.whole:  # no q travels, so nothing has to be cut
            token = noise.race_whole(slot, logits, columns)
        else:
            slot_ids, slot_probs = draft_distribution(logits, columns, entries)
            token = noise.pick(slot, slot_ids, slot_probs)
            ids.append(slot_ids)
            probs.append(slot_probs)
        previous.append(token)
    drawn = torch.stack(previous[1:], dim=1)
    confidence = _confidence(proposal, calibration, torch.stack(previous[:-1], dim=1), laws)
    token_ids = drawn.cpu().numpy()
    if noise is None:
        one = token_ids[..., None].astype(np.uint32)
        return SampledBlock(token_ids, one, np.ones(one.shape, np.float32), confidence)
    if not ids:
        none = np.zeros((*token_ids.shape, 0))
        return SampledBlock(token_ids, none.astype(np.uint32), none.astype(np.float32), confidence)
    return SampledBlock(
        token_ids,
        torch.stack(ids, dim=1).cpu().numpy().astype(np.uint32),
        torch.stack(probs, dim=1).cpu().numpy(),
        confidence,
    )


def _confidence(
    proposal: Proposal, calibration: Calibration, previous: Tensor, laws: Sequence[SamplingParams]
) -> npt.NDArray[np.float32]:
    """[n, k] in [0, 1]; 1 everywhere for a drafter without the head. Raises FloatingPointError on NaN."""
    logits = proposal.confidence_logits(previous)
    if logits is None:
        if not bool(torch.isfinite(proposal.hidden).all()):
            raise FloatingPointError("hidden states are not numbers")
        return np.ones(previous.shape, np.float32)
    wide = logits.float().cpu().numpy()
    if not np.isfinite(wide).all():
        raise FloatingPointError("confidence logits are not numbers")
    fits: list[tuple[Bucket, RuleName]] = [("greedy" if law.greedy else "sampled", NAMES[law.rule]) for law in laws]
    if len(set(fits)) == 1:
        return calibration.apply(wide, *fits[0])
    return np.stack([calibration.apply(row, *fit) for row, fit in zip(wide, fits, strict=True)])
