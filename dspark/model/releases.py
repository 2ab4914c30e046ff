"""What differs between releases of transformers, in one place."""

from __future__ import annotations

import inspect
from typing import Any


def cache_argument(model: Any) -> str:
    """The name under which the model's forward takes a cache of keys and values."""
    names = inspect.signature(model.forward).parameters
    return "cache" if "cache" in names else "past_key_values"
