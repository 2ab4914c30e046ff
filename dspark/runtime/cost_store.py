"""Measured cost curves, and their storage between process starts: a JSON file per key.

A key names machine, device, number format and library version, because a curve holds for these
alone. A file that cannot be read counts as absent. Passes of several threads that share their
processors with another process take up to ten times as long, so such a curve is not stored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog

from dspark.runtime.identity import NoState, state_dir
from dspark.runtime.process import usable
from dspark.runtime.quiet import OthersWork, one_at_a_time
from dspark.whole_file import placed

log = structlog.get_logger("dspark.cost")

FOLDER = "cost"
OTHERS = 0.3  # processors that others may keep busy while passes that need all are measured
Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Curve:
    """Median seconds of one step."""

    tokens: npt.NDArray[np.int64]  # [t], or sequences for a drafter; ascending
    contexts: npt.NDArray[np.int64]  # [c] ascending
    seconds: Floats  # [t, c] above 0, non-decreasing in both
    source: str  # "measured" or "stored"
    # [c] seconds of each sequence beyond those that the tokens fill; empty: unknown
    sequence_seconds: tuple[float, ...] = ()
    tokens_per_sequence: int = 0  # most tokens of a sequence in the measured steps
    borrowed: tuple[int, ...] = ()  # places in `seconds`, row-major, that hold a neighbour's value


def stored_or_measured(
    key: Mapping[str, object], measure: Callable[[], Curve | None]
) -> Curve | None:
    """The stored curve of an equal process, else a fresh measurement, which is then stored, unless
    others needed the processors meanwhile."""
    curve = load_curve(key)
    if curve is None:
        # a card is its process's own, and passes there wait for no processor
        with one_at_a_time() if key.get("device") == "cpu" else nullcontext():
            curve = load_curve(key) or _measured(key, measure)
    if curve is not None:
        log.info(
            "cost.ready",
            source=curve.source,
            points=int(curve.seconds.size),
            one=float(curve.seconds[0, 0]),
        )
    return curve


def _measured(key: Mapping[str, Any], measure: Callable[[], Curve | None]) -> Curve | None:
    others = OthersWork()
    curve = measure()
    if curve is None:
        log.warning("cost.not_measured", reason="the pool or the context is too small")
        return None
    taken = others.processors() if key.get("device") == "cpu" else 0.0
    if taken > OTHERS and taken + key["threads"] > (os.cpu_count() or 1) + OTHERS:
        reason = f"others kept {taken:.1f} processors busy meanwhile"
        log.warning("cost.not_stored", reason=reason, effect="the next start measures again")
    else:
        store_curve(key, curve)
    return curve


def key_of(role: str, engine: Any, **more: object) -> dict[str, object]:
    """The key of a curve of this engine. more: what its times depend on besides model and place."""
    import torch

    on_card = engine.device.type != "cpu"
    return {
        "role": role,
        "model": engine.fingerprint,
        "machine": platform.node(),
        "processor": platform.processor() or platform.machine(),
        "processors": len(usable()),
        "device": torch.cuda.get_device_name(engine.device) if on_card else str(engine.device),
        "dtype": engine.dtype,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **more,
    }


def load_curve(key: Mapping[str, object]) -> Curve | None:
    """The curve an earlier process stored under the same key; None without a valid one."""
    try:
        raw = json.loads(_path(key).read_bytes())
        tokens = np.array(raw["tokens"], dtype=np.int64)
        contexts = np.array(raw["contexts"], dtype=np.int64)
        seconds = np.array(raw["seconds"], dtype=np.float64).reshape(tokens.size, contexts.size)
        more = tuple(float(each) for each in raw.get("sequence_seconds", ()))
        per = int(raw.get("tokens_per_sequence", 0))
        borrowed = tuple(int(each) for each in raw.get("borrowed", ()))
    except (OSError, NoState, ValueError, KeyError, TypeError, RecursionError):
        return None
    sound = (
        tokens.size
        and contexts.size
        and (np.diff(tokens) > 0).all()
        and (np.diff(contexts) > 0).all()
    )
    if not sound or not (np.isfinite(seconds) & (seconds > 0)).all():
        return None
    if len(more) not in (0, contexts.size) or not all(math.isfinite(each) for each in more):
        return None
    if not all(0 <= each < seconds.size for each in borrowed):
        return None
    return Curve(tokens, contexts, seconds, "stored", more, per, borrowed)


def store_curve(key: Mapping[str, object], curve: Curve) -> Path | None:
    """Writes the curve for later processes, atomically, and returns its path. None where it cannot
    be written: the next process measures again."""
    told = {"key": dict(key)} | dataclasses.asdict(curve)
    plain = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in told.items()
    }
    text = json.dumps(plain, indent=1, default=str)
    try:
        path = _path(key)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with placed(path) as draft:
            draft.write_text(text + "\n", encoding="utf-8")
    except (OSError, NoState) as error:
        log.warning("cost.not_stored", reason=str(error), effect="the next start measures again")
        return None
    return path


def _path(key: Mapping[str, object]) -> Path:
    text = json.dumps(dict(key), sort_keys=True, default=str)
    return state_dir() / FOLDER / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def curve_of(samples: Mapping[tuple[int, int], Sequence[float]]) -> Curve | None:
    """The curve of medians of samples, seconds by (tokens, context); points may be missing. None
    without any finite sample above 0.

    A larger step or a longer context cannot take less time: where medians fall it is noise, and
    measured points are moved midway between the least and the most values that keep the order. A
    point that was not measured takes a neighbour's value and is marked as borrowed; it moves no
    measured point.
    """
    medians = {
        point: float(np.median(sound))
        for point, taken in samples.items()
        if (sound := [each for each in taken if math.isfinite(each) and each > 0.0])
    }
    if not medians:
        return None
    tokens, contexts = (sorted({point[axis] for point in medians}) for axis in (0, 1))
    seconds = np.array([[medians.get((t, c), math.nan) for c in contexts] for t in tokens])
    borrowed = tuple(np.flatnonzero(np.isnan(seconds)).tolist())
    whole = completed(never_falling(seconds))
    return Curve(np.array(tokens), np.array(contexts), whole, "measured", borrowed=borrowed)


def never_falling(seconds: Floats) -> Floats:
    """The measured points [t, c], midway between the least and the most that keep them in order;
    NaN stays NaN."""
    least = np.fmax.accumulate(np.fmax.accumulate(seconds, axis=0), axis=1)
    most = _from_above(seconds)
    between: Floats = np.where(np.isnan(seconds), np.nan, least + (most - least) / 2.0)
    return between


def completed(seconds: Floats) -> Floats:
    """Fills every NaN of [t, c] with the dearest smaller point, or, where there is none, the
    cheapest larger one."""
    from_below = np.fmax.accumulate(np.fmax.accumulate(seconds, axis=0), axis=1)
    filled = np.where(np.isnan(seconds), from_below, seconds)
    whole: Floats = np.where(np.isnan(filled), _from_above(filled), filled)
    return whole


def _from_above(seconds: Floats) -> Floats:
    """For each point the cheapest of all points that are at least as large."""
    turned = np.fmin.accumulate(np.fmin.accumulate(seconds[::-1, ::-1], axis=0), axis=1)
    back: Floats = turned[::-1, ::-1]
    return back
