"""Calibration of confidence logits, slot by slot, to probabilities whose product is meaningful.

c_k = sigmoid(z_k / T_k + b_k), so that the running product over a block matches how often its first
k slots are really accepted. Temperatures and offsets belong to one (drafter, target), to the
acceptance rule and to how the request samples, hence two buckets per rule. They are stored in
`calibration.json` beside the weights; without that file the raw sigmoid is used. Plain numbers, no
torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from dspark.errors import CheckpointError
from dspark.model.config_keys import finite, positive, read_json_file

FILE_NAME = "calibration.json"
VERSION = 3
Bucket = Literal["greedy", "sampled"]
RuleName = Literal["block", "token", "coupled"]
BUCKETS: tuple[Bucket, ...] = get_args(Bucket)
RULES: tuple[RuleName, ...] = get_args(RuleName)
Wide = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SlotFit:
    """Temperature and offset of every slot. Increasing in the logit: no slot's ranking changes."""

    temperatures: tuple[float, ...]
    offsets: tuple[float, ...] = ()  # empty: all 0

    def logits(self, raw: npt.ArrayLike) -> Wide:
        """raw [..., k'] of slots 1..k' -> calibrated logits [..., k']."""
        wide = np.asarray(raw, dtype=np.float64)
        slots = wide.shape[-1]
        scaled: Wide = wide / np.asarray(self.temperatures[:slots])
        return scaled + np.asarray(self.offsets[:slots]) if self.offsets else scaled


Buckets = Mapping[Bucket, SlotFit]


@dataclass(frozen=True)
class Calibration:
    """Fits by acceptance rule; a bucket that is absent is the identity."""

    top_k_cut: int | None = None  # draft truncation the fit was made with, None if unknown
    rules: Mapping[RuleName, Buckets] = field(default_factory=dict)

    def fit(self, bucket: Bucket, rule: RuleName) -> SlotFit | None:
        """The rule's fit of a bucket, None without one; a rule that was not fitted takes that of
        the first one that was."""
        for name in (rule, *RULES):
            if name in self.rules:
                return self.rules[name].get(bucket)
        return None

    def apply(
        self, logits: npt.ArrayLike, bucket: Bucket, rule: RuleName = "block"
    ) -> npt.NDArray[np.float32]:
        """logits [..., k'] of slots 1..k' -> probabilities [..., k'] fp32."""
        fit = self.fit(bucket, rule)
        wide = np.asarray(logits, dtype=np.float64) if fit is None else fit.logits(logits)
        # tanh form: no overflow at either end.
        return (0.5 * (1.0 + np.tanh(0.5 * wide))).astype(np.float32)


IDENTITY = Calibration()


def load_calibration(folder: Path, *, block_size: int) -> Calibration:
    """The folder's calibration, or the identity if it has none."""
    path = folder / FILE_NAME
    if not path.exists():
        return IDENTITY
    raw = read_json_file(path)
    try:
        return parse_calibration(raw, block_size=block_size)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def parse_calibration(raw: Any, *, block_size: int) -> Calibration:
    """Checks a decoded calibration.json field by field; errors name the field."""
    if not isinstance(raw, dict):
        raise CheckpointError(f"expected a JSON object, found {raw!r}")
    version = raw.get("version")
    if type(version) is not int or version != VERSION:
        raise CheckpointError(f"version: expected {VERSION}, found {version!r}")
    cut = raw.get("top_k_cut")
    if cut is not None and (type(cut) is not int or cut < 1):
        raise CheckpointError(f"top_k_cut: expected a positive integer or null, found {cut!r}")
    rules = _object("rules", raw.get("rules"), RULES)
    return Calibration(
        cut, {r: _buckets(f"rules.{r}", rules[r], block_size) for r in RULES if r in rules}
    )


def calibration_to_json(calibration: Calibration) -> dict[str, Any]:
    """The JSON object that `parse_calibration` reads."""
    return {
        "version": VERSION,
        "top_k_cut": calibration.top_k_cut,
        "rules": {
            rule: {
                name: {"temperatures": list(fit.temperatures)}
                | ({"offsets": list(fit.offsets)} if fit.offsets else {})
                for name, fit in buckets.items()
            }
            for rule, buckets in calibration.rules.items()
        },
    }


def _buckets(place: str, value: object, block_size: int) -> Buckets:
    held = _object(place, value, BUCKETS)
    return {
        name: _fit(f"{place}.{name}", held[name], block_size) for name in BUCKETS if name in held
    }


def _fit(place: str, value: object, block_size: int) -> SlotFit:
    held = _object(place, value, ("temperatures", "offsets"))
    temperatures = _numbers(f"{place}.temperatures", held.get("temperatures"), block_size, positive)
    if "offsets" not in held:
        return SlotFit(temperatures)
    return SlotFit(temperatures, _numbers(f"{place}.offsets", held["offsets"], block_size, finite))


def _object(place: str, value: object, known: Sequence[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CheckpointError(f"{place}: expected an object, found {value!r}")
    if strange := sorted(value.keys() - set(known)):
        raise CheckpointError(f"{place}.{strange[0]}: expected one of {', '.join(known)}")
    return value


def _numbers(
    name: str, value: object, count: int, read: Callable[[str, object], float]
) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) != count:
        size = len(value) if isinstance(value, list) else value
        raise CheckpointError(f"{name}: expected {count} numbers, found {size!r}")
    return tuple(read(f"{name}[{slot}]", number) for slot, number in enumerate(value))
