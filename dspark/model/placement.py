"""Where weights go and in which number format, from two words of a configuration. Pure but for asking about CUDA."""

from __future__ import annotations

import torch

from dspark.errors import ConfigError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pick_device(name: str, *, key: str) -> torch.device:
    """`auto` takes CUDA where there is one. `key` names the setting in complaints."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"{key}: {name!r} is no device") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"{key}: {name} was asked for and CUDA is not available")
    return device


def pick_dtype(name: str, device: torch.device, *, key: str) -> torch.dtype:
    """`auto` is float32 on a CPU and bfloat16 elsewhere."""
    if name == "auto":
        name = "float32" if device.type == "cpu" else "bfloat16"
    if name not in _DTYPES:
        raise ConfigError(f"{key}: {name!r} is not one of auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]
