"""Numbers between the host and a device: sent without a wait, fetched with one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def sent(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """On the device. A GPU reads pinned memory by itself, in the order of its stream, so nobody
    waits."""
    if device.type != "cuda":
        return torch.from_numpy(array).to(device)
    return torch.from_numpy(array).pin_memory().to(device, non_blocking=True)


def fetched(tensor: Tensor) -> npt.NDArray[Any]:
    """On the host, when everything before it is done: the one wait of a pass."""
    made: npt.NDArray[Any] = tensor.cpu().numpy()
    return made


def fetched_together(tensors: Sequence[Tensor]) -> list[npt.NDArray[np.float64]]:
    """Several by one copy, each in its shape."""
    flat = fetched(torch.cat([each.flatten().double() for each in tensors]))
    parts = np.split(flat, np.cumsum([each.numel() for each in tensors])[:-1])
    return [part.reshape(each.shape) for part, each in zip(parts, tensors, strict=True)]
