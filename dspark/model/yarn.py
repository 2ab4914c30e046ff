"""YaRN (arXiv 2309.00071): rotation for contexts longer than those that layers were trained on.

Slow pairs, which turn less than once within the old length, turn slower by the factor; fast ones, which tell neighbours
apart, stay as they are; those between are mixed. Angles are told longer or shorter by a number, too, so that attention
is as sharp as before. Names and defaults are those of transformers' `rope_parameters`. No torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dspark.errors import CheckpointError
from dspark.model.config_keys import positive, show


@dataclass(frozen=True)
class Yarn:
    """Of all layers of a drafter."""

    factor: float
    original_max_position_embeddings: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def mixed(self, head_dim: int, theta: float) -> tuple[float, float]:
        """The pairs between which those that keep their speed give way to those that are slowed down."""
        low, high = (self._pair(turns, head_dim, theta) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        return max(low, 0), min(high, head_dim - 1)

    def _pair(self, turns: float, head_dim: int, theta: float) -> float:
        """The pair that turns so often within the old length."""
        length = self.original_max_position_embeddings
        return head_dim * math.log(length / (turns * 2.0 * math.pi)) / (2.0 * math.log(theta))


def read_yarn(raw: dict[str, Any], where: str, longest: int) -> Yarn:
    """Of the settings `where`; longest: positions of the drafter. Raises CheckpointError naming the key."""

    def number(key: str, default: float | None = None) -> float:
        value = raw.get(key)
        return default if value is None and default is not None else positive(f"{where}.{key}", value)

    original = number("original_max_position_embeddings")
    if original != int(original):
        raise CheckpointError(f"{where}.original_max_position_embeddings: {show(original)} is no length")
    factor = number("factor", longest / original)
    scales = [raw.get(key) for key in ("mscale", "mscale_all_dim")]
    if all(scales):
        one, all_dim = (positive(f"{where}.mscale", scale) for scale in scales)
        sharpness = _sharpness(factor, one) / _sharpness(factor, all_dim)
    else:
        sharpness = _sharpness(factor, 1.0)
    truncate = raw.get("truncate", True)
    if not isinstance(truncate, bool):
        raise CheckpointError(f"{where}.truncate: expected true or false, found {show(truncate)}")
    return Yarn(
        factor,
        int(original),
        number("attention_factor", sharpness),
        number("beta_fast", 32.0),
        number("beta_slow", 1.0),
        truncate,
    )


def _sharpness(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * scale * math.log(factor) + 1.0
