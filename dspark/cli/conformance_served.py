"""Loads the two engines of a conformance run as `dspark serve` loads them, on small scattered
pages.

Cases then check what is served: the loading of weights and calibration, pages, kernels and layers
in one call, prompts prefilled in rounds, cached prefixes, and rows that are sent late or again.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dspark.errors import CheckpointError
from dspark.model.calibration import (
    BUCKETS,
    FILE_NAME,
    RULES,
    Calibration,
    SlotFit,
    calibration_to_json,
)
from dspark.model.config import CONFIG_NAME
from dspark.model.weights_file import weight_files
from dspark.types import Cursor, Refusal
from dspark.wire.v1 import types_pb2

PAGE = 4  # tokens, so that every sequence has many pages
PREFILL_CHUNK, RIDING = 16, 8  # prompt tokens of a pass of their own, and in a round's pass
GAP = 3  # free pages of a drafter that are contiguous
FIRST_SPACER = 1 << 32  # first id of sequences that only occupy pages


def calibration_for(block_size: int) -> Calibration:
    """A calibration that no checkpoint has. It is the same for every slot, so that a threshold of
    raw confidence has a calibrated equal."""
    fit = SlotFit((2.0,) * block_size, (0.75,) * block_size)
    return Calibration(None, {rule: dict.fromkeys(BUCKETS, fit) for rule in RULES})


def calibrated_threshold(raw: float) -> float:
    """The calibrated value of a raw confidence."""
    if not 0.0 < raw < 1.0:
        return raw
    logit = math.log(raw) - math.log1p(-raw)
    return float(calibration_for(1).apply([logit], "greedy")[0])


@contextlib.contextmanager
def calibrated_copy(folder: Path, block_size: int) -> Iterator[Path]:
    """A temporary copy of a drafter's folder with such a calibration; weights are hard links if
    possible."""
    with tempfile.TemporaryDirectory(prefix="dspark-conformance-") as name:
        made = Path(name)
        for file in (folder / CONFIG_NAME, *weight_files(folder), *folder.glob("*.index.json")):
            try:
                os.link(file.resolve(), made / file.name)
            except OSError:  # another file system
                shutil.copyfile(file, made / file.name)
        (made / FILE_NAME).write_text(json.dumps(calibration_to_json(calibration_for(block_size))))
        yield made


def load_draft(folder: Path, lives: Sequence[int], target: Path | None) -> Any:
    """The draft engine of a calibrated copy, with scattered free pages for contexts of these
    numbers of tokens."""
    from draft_service.config import DraftConfig
    from draft_service.engine import DraftEngine

    pages = 2 * sum(-(-life // PAGE) + GAP for life in lives) + 2 * GAP
    engine = DraftEngine.load(
        DraftConfig(
            drafter=str(folder),
            target=str(target or ""),
            device="cpu",
            dtype="float32",
            context_tokens=pages * PAGE,
            page_size=PAGE,
            max_sequences=pages,
            measure_cost=False,
        )
    )
    if not engine.calibrated:
        raise CheckpointError(f"{folder / FILE_NAME}: was not loaded")
    spacers = range(FIRST_SPACER, FIRST_SPACER + pages // GAP)
    for spacer in spacers:
        served(engine.open(Cursor(spacer, 1, 0, 1), GAP * PAGE))
    for spacer in spacers[::2]:
        engine.release(spacer, 1)
    return engine


def load_verify(target: Path, drafter: Path, lives: Sequence[int]) -> Any:
    """The verify engine, with KV pages for twice these numbers of tokens, so that a turn finds the
    prefixes of the one before.

    Sequences are opened for more tokens than that, so few of them can be contiguous.
    """
    from verify_service.config import VerifyConfig
    from verify_service.engine import VerifyEngine

    engine = VerifyEngine.load(
        VerifyConfig(
            target=str(target),
            drafter=str(drafter),
            device="cpu",
            dtype="float32",
            kv_tokens=2 * sum(-(-life // PAGE) * PAGE for life in lives) + 64 * PAGE,
            page_size=PAGE,
            prefill_chunk=PREFILL_CHUNK,
            step_prefill_tokens=RIDING,
            measure_cost=False,
        )
    )
    if engine.attention_path != "paged":
        raise CheckpointError(f"{target}: runs {engine.attention_path}, not packed")
    return engine


def send_rows(draft: Any, rows: Any) -> None:
    """Passes a verifier's feature rows to a drafter in their wire form."""
    if rows is None:
        raise CheckpointError("the verifier made no feature rows")
    count = len(rows.token_ids)
    if count:
        told = draft.read_rows(types_pb2.TensorChunk(**rows.rows.chunk()), count)
        served(draft.ingest(rows.sequence, rows.epoch, rows.start, rows.token_ids, told))


def served(outcome: Any) -> Any:
    """The outcome of an engine's call; raises CheckpointError if it is a refusal."""
    if isinstance(outcome, Refusal):
        raise CheckpointError(f"refused, {outcome.reason.name}: {outcome.message}")
    return outcome
