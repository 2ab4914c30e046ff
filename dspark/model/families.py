"""From a config to the drafter of its family."""

from __future__ import annotations

from dspark.errors import UnsupportedFamily
from dspark.model.chain import Eagle3Drafter, MTPDrafter
from dspark.model.config import DrafterConfig, Kind
from dspark.model.drafter import BlockDrafter
from dspark.model.family import Drafter
from dspark.model.language import LanguageDrafter
from dspark.model.staged import StagedDrafter

_FAMILIES: dict[Kind, type[BlockDrafter] | type[Eagle3Drafter] | type[MTPDrafter] | type[LanguageDrafter]] = {
    "block": BlockDrafter,
    "eagle3": Eagle3Drafter,
    "mtp": MTPDrafter,
    "lm": LanguageDrafter,
}


def build_drafter(config: DrafterConfig) -> Drafter:
    """Uninitialised weights; see `fresh` and `checkpoint`."""
    return StagedDrafter(config) if config.stage is not None else _FAMILIES[config.kind](config)


def as_block(drafter: Drafter) -> BlockDrafter:
    """The same drafter, where only DSpark or DFlash will do."""
    if not isinstance(drafter, BlockDrafter):
        raise UnsupportedFamily(f"a block drafter (dspark or dflash) is needed here, this is {drafter.config.family}")
    return drafter
