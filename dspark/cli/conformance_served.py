"""Loads the checkpoints of a conformance run, and the two engines as `dspark serve` loads them, on
small scattered pages.

Cases then check what is served: the loading of weights and calibration, pages, kernels and layers
in one call, prompts prefilled in rounds, cached prefixes, and rows that are sent late or again.

The rooms are imported when cases run, so the signatures here have `Any` in place of their types.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dspark.errors import CheckpointError
from dspark.model.calibration import (
    BUCKETS,
    FILE_NAME,
    RULES,
    Calibration,
    SlotFit,
    calibration_to_json,
)
from dspark.model.checkpoint import LoadedTarget, load_drafter, load_target
from dspark.model.config import DrafterConfig
from dspark.model.config_file import read_drafter_config
from dspark.model.config_keys import CONFIG_NAME, read_json
from dspark.model.family import Drafter
from dspark.model.weights_file import read_directory, weight_files
from dspark.types import Block, Cursor, Refusal, SamplingParams

GREEDY = SamplingParams(temperature=0.0)
PAGE = 4  # tokens, so that every sequence has many pages
PREFILL_CHUNK, RIDING = 16, 8  # prompt tokens of a pass of their own, and in a round's pass
GAP = 3  # free pages of a drafter that are contiguous
FIRST_SPACER = 1 << 32  # first id of sequences that only occupy pages
SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "page_size": PAGE,
    "measure_cost": False,
}


class ReferencePair(NamedTuple):
    """A drafter's folder, its drafter, and the target if there is one; as loaded, not as served."""

    folder: Path
    drafter: Drafter
    target: LoadedTarget | None


def load_pair(folder: Path) -> ReferencePair:
    """A drafter, and the target beside it. Raises CheckpointError unless the tables that they share
    are equal."""
    beside = _target_for(folder, read_drafter_config(folder))
    drafter = load_drafter(folder, target=beside)
    if beside is None:
        return ReferencePair(folder, drafter, None)
    target = load_target(beside)
    if drafter.config.kind != "lm":
        embedding = target.model.get_input_embeddings().weight
        head, kept = target.model.get_output_embeddings().weight, drafter.kept_tokens
        if not torch.equal(drafter.embed_tokens.weight, embedding):
            raise CheckpointError("embed_tokens.weight is not the target's")
        if not torch.equal(drafter.lm_head.weight, head if kept is None else head[kept]):
            raise CheckpointError("lm_head.weight is not the target's")
    return ReferencePair(folder, drafter, target)


def _target_for(folder: Path, config: DrafterConfig) -> Path | None:
    """The target beside a drafter that has its vocabulary, width, depth and kind of layers; None if
    there is none."""
    wanted = {name: getattr(config, name) for name in ("vocab_size", "hidden_size", "model_type")}
    wanted["num_hidden_layers"] = config.num_target_layers
    fitting = []
    for other in sorted(path for path in folder.parent.iterdir() if path.is_dir()):
        with contextlib.suppress(CheckpointError):
            raw = read_json(other / CONFIG_NAME)
            fits = "target_layer_ids" not in raw and wanted.items() <= raw.items()
            # a module of the target's own format may come without its layers
            if fits and any("layers.0." in name for name in read_directory(other)):
                fitting.append(other)
    if len(fitting) > 1:
        names = ", ".join(path.name for path in fitting)
        raise CheckpointError(f"{folder}: several targets fit: {names}")
    return fitting[0] if fitting else None


def calibration_for(block_size: int) -> Calibration:
    """A calibration that no checkpoint has. It is the same for every slot, so that a threshold of
    raw confidence has a calibrated equal."""
    fit = SlotFit((2.0,) * block_size, (0.75,) * block_size)
    return Calibration(None, {rule: dict.fromkeys(BUCKETS, fit) for rule in RULES})


def calibrated_threshold(raw: float) -> float:
    """The calibrated value of a raw confidence."""
    logit = torch.tensor(raw, dtype=torch.float64).logit()
    return float(calibration_for(1).apply([logit], "greedy")[0])


def load_draft(pair: ReferencePair, lives: Sequence[int]) -> Any:
    """The draft engine of a copy with such a calibration, with scattered free pages for contexts of
    these numbers of tokens. Weights are hard links if possible."""
    from draft_service.config import DraftConfig
    from draft_service.engine import DraftEngine

    folder, size = pair.folder, pair.drafter.config.block_size
    pages = 2 * sum(-(-life // PAGE) + GAP for life in lives) + 2 * GAP
    with tempfile.TemporaryDirectory(prefix="dspark-conformance-") as name:
        for file in (folder / CONFIG_NAME, *weight_files(folder), *folder.glob("*.index.json")):
            try:
                os.link(file.resolve(), Path(name, file.name))
            except OSError:  # another file system
                shutil.copyfile(file, Path(name, file.name))
        Path(name, FILE_NAME).write_text(json.dumps(calibration_to_json(calibration_for(size))))
        config = DraftConfig(
            drafter=name,
            target=str(pair.target.folder) if pair.target is not None else "",
            context_tokens=pages * PAGE,
            max_sequences=pages,
            **SETTINGS,
        )
        engine = DraftEngine.load(config)
    if not engine.calibrated:
        raise CheckpointError(f"{FILE_NAME}: was not loaded")
    spacers = range(FIRST_SPACER, FIRST_SPACER + pages // GAP)
    for spacer in spacers:
        served(engine.open(Cursor(spacer, 1, 0, 1), GAP * PAGE))
    for spacer in spacers[::2]:
        engine.contexts.release(spacer, 1)
    return engine


def load_verify(pair: ReferencePair, lives: Sequence[int]) -> Any:
    """The verify engine, with KV pages for twice these numbers of tokens, so that a turn finds the
    prefixes of the one before.

    Sequences are opened for more tokens than that, so few of them can be contiguous.
    """
    from verify_service.config import VerifyConfig
    from verify_service.engine import VerifyEngine

    if pair.target is None:
        raise CheckpointError("no target beside the drafter fits it")
    config = VerifyConfig(
        target=str(pair.target.folder),
        drafter=str(pair.folder),
        kv_tokens=2 * sum(-(-life // PAGE) * PAGE for life in lives) + 64 * PAGE,
        prefill_chunk=PREFILL_CHUNK,
        step_prefill_tokens=RIDING,
        **SETTINGS,
    )
    return VerifyEngine.load(config)


def served(outcome: Any) -> Any:
    """The outcome of an engine's call; raises CheckpointError if it is a refusal, or a block
    without tokens."""
    if isinstance(outcome, Refusal):
        raise CheckpointError(f"refused, {outcome.reason.name}: {outcome.message}")
    if isinstance(outcome, Block) and outcome.empty_reason:
        raise CheckpointError(f"the drafter sent an empty block: {outcome.empty_reason.name}")
    return outcome
