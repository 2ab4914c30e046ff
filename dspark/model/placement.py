"""Picks the device and number format of weights from two settings. Pure but for queries of CUDA and
Linux."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from dspark.errors import ConfigError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pick_device(name: str, *, key: str) -> torch.device:
    """The named device; `auto` is CUDA if there is any. `key` names the setting in errors."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"{key}: {name!r} is no device") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"{key}: {name} was asked for and CUDA is not available")
    if device.type == "cuda" and (device.index or 0) >= (there := torch.cuda.device_count()):
        raise ConfigError(
            f"{key}: {name} was asked for, and the last of the {there} cards here is "
            f"cuda:{there - 1}"
        )
    return device


def use(device: torch.device) -> None:
    """Makes a card the current one of this thread: recordings and some kernels name no device.
    Without a number it is the current one already."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def pick_dtype(name: str, device: torch.device, *, key: str) -> torch.dtype:
    """The dtype by name; `auto` is float32 on a CPU and bfloat16 elsewhere."""
    if name == "auto":
        name = "float32" if device.type == "cpu" else "bfloat16"
    if name not in _DTYPES:
        raise ConfigError(f"{key}: {name!r} is not one of auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]


def free_bytes(device: torch.device) -> int | None:
    """Bytes of memory that are free on the device now; None where that is unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    found = [_available(), _left_to_group()]
    return min((each for each in found if each is not None), default=None)


def card_memory(device: torch.device) -> tuple[int, int] | None:
    """(free, in all) bytes of a card; None for a CPU, whose memory other processes use too."""
    if device.type != "cuda":
        return None
    free, whole = torch.cuda.mem_get_info(device)
    return int(free), int(whole)


def slot_bytes(layers: Iterable[Any], dtype: torch.dtype) -> int | None:
    """Bytes of one token's keys and values in these decoder layers; None if a layer's sizes are
    unknown."""
    values = 0
    for layer in layers:
        attention = getattr(layer, "self_attn", None)
        key, value = (getattr(attention, name, None) for name in ("k_proj", "v_proj"))
        if key is None or not hasattr(key, "out_features"):
            return None
        values += key.out_features + getattr(value, "out_features", key.out_features)
    return values * dtype.itemsize


def _available() -> int | None:
    """Available bytes of this machine, as Linux reports them; None elsewhere."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _left_to_group(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes left of this container's limit, with reclaimable cache; None without a limit."""
    try:
        most, used = (folder / "memory.max", folder / "memory.current")
        limit = most.read_text(encoding="ascii").strip()
        if limit == "max":
            return None
        held = dict(
            line.split()
            for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines()
        )
        return (
            int(limit) - int(used.read_text(encoding="ascii")) + int(held.get("inactive_file", 0))
        )
    except (OSError, ValueError):
        return None
