"""Where the numbers of a weight lie in memory, for machines that serve a few rows at a time.

A matrix product with 1 to 30 rows on a CPU takes about half the time when the weight is
stored the way it is read: [in, out] instead of the checkpoint's [out, in]. Shapes and values
stay as they are; only strides change.
"""

from __future__ import annotations

import torch
from torch import nn


def favour_few_rows(module: nn.Module) -> None:
    """Re-lays every fp32 linear weight on the CPU that no other layer shares."""
    shared = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    for part in module.modules():
        if not isinstance(part, nn.Linear) or id(part.weight) in shared:
            continue  # a tied embedding reads rows, which this would scatter
        weight = part.weight
        if weight.device.type == "cpu" and weight.dtype == torch.float32:
            weight.data = weight.data.t().contiguous().t()
