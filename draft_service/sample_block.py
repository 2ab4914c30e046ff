"""The sequential walk over a block: draws slot by slot, each given the token before it, then reads
the confidence.

Invariant 3, q sent is q sampled: a slot's token is drawn from the very float32 numbers that go into
the block, cut to the most likely entries and renormalised. Greedy sequences send one entry, coupled
ones none. The confidence of slot k depends on the tokens before slot k and never on its own; it is
calibrated here.

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
from dspark.decoding.masking import first_masked
from dspark.decoding.moving import fetched_together
from dspark.decoding.sampling import SamplingColumns, draft_distribution, largest
from dspark.decoding.shaping import Shaper, shaped_last
from dspark.model.calibration import Bucket, Calibration, RuleName
from dspark.model.family import Proposal
from dspark.types import Cursor, Rule, SamplingParams

NAMES: dict[Rule, RuleName] = {Rule.TOKEN: "token", Rule.BLOCK: "block", Rule.COUPLED: "coupled"}


class SampledBlock(NamedTuple):
    """The tokens drawn for every sequence, what they were drawn from, and their confidence."""

    token_ids: npt.NDArray[np.int64]  # [n, k]
    q_ids: npt.NDArray[np.uint32]  # [n, k, K]
    q_probs: npt.NDArray[np.float32]  # [n, k, K]
    confidence: npt.NDArray[np.float32]  # [n, k]


@torch.inference_mode()
def sample_block(
    proposal: Proposal,
    calibration: Calibration,
    anchor_ids: Tensor,  # [n]
    all_params: Sequence[SamplingParams],
    cursors: Sequence[Cursor],
    *,
    slots: int,
    entries: int,
    shapers: Sequence[Shaper | None] | None = None,  # [n], counted up to the anchors
    masks: Sequence[bytes] = (),  # [n] for first slots, see `first_masked`; or none
) -> SampledBlock:
    """Draws k tokens for each of n sequences; only the final copy waits for the device. Raises
    FloatingPointError where numbers are not finite."""
    device = anchor_ids.device
    columns = SamplingColumns.of(all_params, device)
    noise = None if columns.all_greedy else DraftNoise(all_params, cursors, slots, device)
    previous = [anchor_ids]
    ids: list[Tensor] = []
    probs: list[Tensor] = []
    for slot in range(slots):
        logits = proposal.step(previous[-1])
        if slot == 0 and any(masks):
            logits = first_masked(logits, masks)
        if shapers is not None:
            said = torch.stack(previous, dim=1).tolist()
            logits = shaped_last(logits, zip(said, shapers, strict=True))
        if noise is None:
            token = largest(logits)
        else:
            slot_ids, slot_probs = draft_distribution(logits, columns, entries)
            token = noise.pick(slot, slot_ids, slot_probs)
            ids.append(slot_ids)
            probs.append(slot_probs)
        previous.append(token)
    told = proposal.confidence_logits(torch.stack(previous[:-1], dim=1))
    numbers = torch.isfinite(told).all().view(1)
    sound = torch.cat([numbers, *(noise.sound if noise is not None else ())])
    made = [torch.stack(part, dim=1) for part in (previous[1:], ids, probs) if part]
    drawn, *sent, fine, judged = fetched_together([*made, sound, told])
    if not fine.all():
        raise FloatingPointError("what was drafted from is not numbers")
    confidence = _calibrated(judged.astype(np.float32), calibration, all_params)
    token_ids = drawn.astype(np.int64)
    if noise is None:
        sent = [drawn[..., None], np.ones((*drawn.shape, 1))]
    q_ids, q_probs = sent
    return SampledBlock(token_ids, q_ids.astype(np.uint32), q_probs.astype(np.float32), confidence)


def _calibrated(
    logits: npt.NDArray[np.float32], calibration: Calibration, all_params: Sequence[SamplingParams]
) -> npt.NDArray[np.float32]:
    """Calibrated confidences [n, k] in [0, 1] of logits [n, k]."""
    fits: list[tuple[Bucket, RuleName]] = [
        ("greedy" if params.greedy else "sampled", NAMES[params.rule]) for params in all_params
    ]
    if len(set(fits)) == 1:
        return calibration.apply(logits, *fits[0])
    return np.stack([calibration.apply(row, *fit) for row, fit in zip(logits, fits, strict=True)])
