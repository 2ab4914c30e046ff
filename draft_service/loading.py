"""From a configuration to a drafter on a device, with the calibration that belongs to it."""

from __future__ import annotations

from typing import NamedTuple

import structlog
import torch

from draft_service.config import DraftConfig
from dspark.model.calibration import IDENTITY, Calibration, load_calibration
from dspark.model.checkpoint import fingerprint, load_drafter
from dspark.model.family import Drafter
from dspark.model.location import locate
from dspark.model.placement import pick_device, pick_dtype

log = structlog.get_logger("dspark.draft")


class DrafterParts(NamedTuple):
    """What an engine is made of."""

    drafter: Drafter
    calibration: Calibration
    calibrated: bool
    fingerprint: str


def load_parts(config: DraftConfig) -> DrafterParts:
    """Everything on the device; call it on the thread that will own it."""
    torch.set_num_threads(config.threads)
    device = pick_device(config.device, key="draft.device")
    dtype = pick_dtype(config.dtype, device, key="draft.dtype")
    folder = locate(config.drafter, revision=config.drafter_revision)
    target, revision = config.target or None, config.target_revision
    drafter = load_drafter(folder, dtype=dtype, device=device, target=target, target_revision=revision).requires_grad_(
        False
    )
    drafter.serve()
    calibration = load_calibration(folder, block_size=drafter.config.block_size)
    calibrated = calibration is not IDENTITY
    if not calibrated:
        log.info("draft.not_calibrated", drafter=config.drafter)
    if calibrated and calibration.top_k_cut not in (None, config.q_entries):
        # Confidence was fitted for another cut of q; it still orders slots, but its product is off.
        log.warning("draft.calibrated_for_other_cut", fitted=calibration.top_k_cut, serving=config.q_entries)
    version = fingerprint(folder, target=target, target_revision=revision)
    return DrafterParts(drafter, calibration, calibrated, version)
