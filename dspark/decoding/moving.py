"""Copies between host and device: sending does not synchronise, fetching does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def sent(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Copies to the device. A GPU reads pinned memory by itself, in the order of its stream, so the
    host does not wait."""
    if device.type != "cuda":
        return torch.from_numpy(array).to(device)
    return torch.from_numpy(array).pin_memory().to(device, non_blocking=True)


def fetched(tensor: Tensor) -> npt.NDArray[Any]:
    """Copies to the host when all work before it is done: the one synchronisation of a pass."""
    made: npt.NDArray[Any] = tensor.cpu().numpy()
    return made


def fetched_together(tensors: Sequence[Tensor]) -> list[npt.NDArray[np.float64]]:
    """Fetches several tensors in one copy, each in its shape, as float64."""
    flat = fetched(torch.cat([each.flatten().double() for each in tensors]))
    parts = np.split(flat, np.cumsum([each.numel() for each in tensors])[:-1])
    return [part.reshape(each.shape) for part, each in zip(parts, tensors, strict=True)]
