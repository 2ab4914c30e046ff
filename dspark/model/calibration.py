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
from dspark.model.config_keys import Keys, finite, positive, read_json_file, show

FILE_NAME = "calibration.json"
VERSION = 3
Bucket = Literal["greedy", "sampled"]
RuleName = Literal["block", "token", "coupled"]
BUCKETS: tuple[Bucket, ...] = get_args(Bucket)
RULES: tuple[RuleName, ...] = get_args(RuleName)
Wide = npt.NDArray[np.float64]


def sigmoid(z: Wide) -> Wide:
    """Of any numbers [...]; its tanh form overflows at neither end."""
    chances: Wide = 0.5 * (1.0 + np.tanh(0.5 * z))
    return chances


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
        return sigmoid(wide).astype(np.float32)


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
        raise CheckpointError(f"expected a JSON object, found {show(raw)}")
    keys = Keys(raw)
    keys.must_equal("version", VERSION)
    cut = None if raw.get("top_k_cut") is None else keys.count("top_k_cut")
    rules = _only(keys.inside("rules"), RULES)
    fits = {rule: _only(rules.inside(rule), BUCKETS) for rule in RULES if rule in rules.raw}
    return Calibration(
        cut,
        {
            rule: {name: _fit(of.inside(name), block_size) for name in BUCKETS if name in of.raw}
            for rule, of in fits.items()
        },
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


def _fit(keys: Keys, block_size: int) -> SlotFit:
    _only(keys, ("temperatures", "offsets"))
    temperatures = _numbers(keys, "temperatures", block_size, positive)
    offsets = _numbers(keys, "offsets", block_size, finite) if "offsets" in keys.raw else ()
    return SlotFit(temperatures, offsets)


def _only(keys: Keys, known: Sequence[str]) -> Keys:
    """The keys, unless there are others than the known ones."""
    if strange := sorted(keys.raw.keys() - set(known)):
        raise CheckpointError(f"{keys.where}{strange[0]}: expected one of {', '.join(known)}")
    return keys


def _numbers(
    keys: Keys, key: str, count: int, read: Callable[[str, object], float]
) -> tuple[float, ...]:
    value = keys.raw.get(key)
    if not isinstance(value, list) or len(value) != count:
        raise keys.wrong(key, f"{count} numbers", value)
    return tuple(read(f"{keys.where}{key}[{at}]", number) for at, number in enumerate(value))
