"""Per-slot temperatures that turn confidence logits into probabilities one can multiply.

c_k = sigmoid(z_k / T_k), so that the running product over a block matches how often its first
k slots are really accepted. The temperatures belong to one (drafter, target, acceptance rule)
and to how the request samples, hence two buckets. They live in `calibration.json` beside the
weights; without that file the raw sigmoid is used. Plain numbers, no torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from dspark.errors import CheckpointError

FILE_NAME = "calibration.json"
VERSION = 1
Bucket = Literal["greedy", "sampled"]
_BUCKETS: tuple[Bucket, ...] = get_args(Bucket)
_RULES = ("token", "block", "coupled")


@dataclass(frozen=True)
class Calibration:
    """Temperatures for one acceptance rule; a bucket that is absent is the identity."""

    rule: str = "token"
    top_k_cut: int | None = None  # draft truncation the fit was made with, None if unknown
    buckets: Mapping[Bucket, tuple[float, ...]] = field(default_factory=dict)

    def apply(self, logits: npt.ArrayLike, bucket: Bucket) -> npt.NDArray[np.float32]:
        """logits [..., k'] of slots 1..k' -> probabilities [..., k'] fp32."""
        wide = np.asarray(logits, dtype=np.float64)
        temperatures = self.buckets.get(bucket)
        if temperatures is not None:
            wide = wide / np.asarray(temperatures[: wide.shape[-1]])
        # tanh form: no overflow at either end.
        return (0.5 * (1.0 + np.tanh(0.5 * wide))).astype(np.float32)


IDENTITY = Calibration()


def load_calibration(folder: Path, *, block_size: int) -> Calibration:
    """The folder's calibration, or the identity if it has none."""
    path = folder / FILE_NAME
    if not path.exists():
        return IDENTITY
    try:
        return parse_calibration(json.loads(path.read_bytes()), block_size=block_size)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error})") from error
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def parse_calibration(raw: Any, *, block_size: int) -> Calibration:
    """Check a decoded calibration.json field by field."""
    if not isinstance(raw, dict):
        raise CheckpointError(f"expected a JSON object, found {raw!r}")
    if type(raw.get("version")) is not int or raw["version"] != VERSION:
        raise CheckpointError(f"version: expected {VERSION}, found {raw.get('version')!r}")
    if (rule := raw.get("rule")) not in _RULES:
        raise CheckpointError(f"rule: expected one of {', '.join(_RULES)}, found {rule!r}")
    cut = raw.get("top_k_cut")
    if cut is not None and (type(cut) is not int or cut < 1):
        raise CheckpointError(f"top_k_cut: expected a positive integer or null, found {cut!r}")
    buckets = raw.get("buckets")
    if not isinstance(buckets, dict):
        raise CheckpointError(f"buckets: expected an object, found {buckets!r}")
    if strange := sorted(buckets.keys() - set(_BUCKETS)):
        raise CheckpointError(f"buckets.{strange[0]}: expected one of {', '.join(_BUCKETS)}")
    parsed = {name: _temperatures(name, buckets[name], block_size) for name in _BUCKETS if name in buckets}
    return Calibration(rule=rule, top_k_cut=cut, buckets=parsed)


def calibration_to_json(calibration: Calibration) -> dict[str, Any]:
    """What `parse_calibration` reads."""
    return {
        "version": VERSION,
        "rule": calibration.rule,
        "top_k_cut": calibration.top_k_cut,
        "buckets": {name: list(values) for name, values in calibration.buckets.items()},
    }


def _temperatures(name: str, value: object, block_size: int) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) != block_size:
        size = len(value) if isinstance(value, list) else value
        raise CheckpointError(f"buckets.{name}: expected {block_size} temperatures, found {size!r}")
    for slot, number in enumerate(value):
        right = isinstance(number, int | float) and type(number) is not bool
        if not right or not math.isfinite(number) or number <= 0:
            raise CheckpointError(f"buckets.{name}[{slot}]: expected a positive number, found {number!r}")
    return tuple(float(number) for number in value)
