"""Rotary frequencies that a file states as divisors, one per pair of a head's values, as Llama 3.1 and later do.

Model folders state the rule that makes them. Of the rules that were published the one that gives these divisors is
taken; others are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dspark.errors import CheckpointError

TENSOR = "rope_freqs.weight"
_LOW, _HIGH, _BEFORE = 1.0, 4.0, 8192  # Llama 3.1 to 3.3: bounds of wavelengths, and the context before scaling
_FACTORS = (8.0, 16.0, 32.0)
_CLOSE = 1e-3


def scaling_of(divisors: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_scaling` of config.json for float32 divisors [head_dim / 2]."""
    for factor in _FACTORS:
        wanted = _divisors(config["head_dim"], config["rope_theta"], factor)
        if divisors.shape == wanted.shape and np.allclose(divisors, wanted, rtol=_CLOSE):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": _LOW,
                "high_freq_factor": _HIGH,
                "original_max_position_embeddings": _BEFORE,
            }
    raise CheckpointError(f"{TENSOR}: these frequencies are of no rule that is known here")


def _divisors(head_dim: int, theta: float, factor: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Short wavelengths stay, long ones are stretched by the factor, and between the two it rises."""
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    kept = np.clip((_BEFORE / wavelengths - _LOW) / (_HIGH - _LOW), 0.0, 1.0)
    return 1.0 / ((1.0 - kept) / factor + kept)
