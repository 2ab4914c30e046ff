"""What differs between releases of transformers, in one place."""

from __future__ import annotations

import inspect
from typing import Any

_CACHES = ("cache", "past_key_values", "cache_params")  # under one of these a model returns it


def returned_cache(output: Any) -> Any:
    """The cache that a call of a model gives back, or None."""
    return next((output[name] for name in _CACHES if output.get(name) is not None), None)


def takes_positions(model: Any) -> bool:
    """Whether positions are told to the model: not all find them in a cache whose first layer counts no tokens."""
    return "position_ids" in inspect.signature(model.forward).parameters


def cache_argument(model: Any) -> str:
    """The name under which the model's forward takes a cache of keys and values."""
    names = inspect.signature(model.forward).parameters
    return "cache" if "cache" in names else "past_key_values"
