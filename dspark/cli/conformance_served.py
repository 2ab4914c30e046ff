"""The two engines of a conformance run: loaded as `dspark serve` loads them, on small pages that
lie apart.

What is checked is then what is served: the loading of weights and calibration, pages, kernels and
layers in one call, prompts that ride in rounds, kept prefixes, rows that are owed and sent again.
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
PREFILL_CHUNK, RIDING = 16, 8  # prompt tokens of a pass by itself, and beside a round
GAP = 3  # pages of a drafter that lie together
FIRST_SPACER = 1 << 32  # ids of sequences that only take room


def calibration_for(block_size: int) -> Calibration:
    """One that no checkpoint has, the same for every slot: thresholds of raw confidence then have
    their like."""
    fit = SlotFit((2.0,) * block_size, (0.75,) * block_size)
    return Calibration(None, {rule: dict.fromkeys(BUCKETS, fit) for rule in RULES})


def calibrated_threshold(raw: float) -> float:
    """What raw confidence of this much becomes."""
    if not 0.0 < raw < 1.0:
        return raw
    logit = math.log(raw) - math.log1p(-raw)
    return float(calibration_for(1).apply([logit], "greedy")[0])


@contextlib.contextmanager
def calibrated_copy(folder: Path, block_size: int) -> Iterator[Path]:
    """A drafter's folder beside which such a calibration lies; weights are linked where that can
    be."""
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
    """The drafter of a calibrated copy, with contexts for lives of so many tokens in pages that lie
    apart."""
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
    """The target, with keys and values for twice these lives: what one turn leaves is found by the
    next.

    Sequences are opened for lives longer than that, so few of them can lie in a row.
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
    """Rows of a verifier to a drafter, in the form in which they travel."""
    if rows is None:
        raise CheckpointError("the verifier made no feature rows")
    count = len(rows.token_ids)
    if count:
        told = draft.read_rows(types_pb2.TensorChunk(**rows.rows.chunk()), count)
        served(draft.ingest(rows.sequence, rows.epoch, rows.start, rows.token_ids, told))


def served(outcome: Any) -> Any:
    """What was answered; raises where it is a refusal."""
    if isinstance(outcome, Refusal):
        raise CheckpointError(f"refused, {outcome.reason.name}: {outcome.message}")
    return outcome
