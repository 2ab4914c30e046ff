"""GPU attention kernels of torch and flash-attn that read pages in place.

They are detected by signature, as older releases lack parameters.

Symbols: T tokens of the pass, N sequences, P pages of the longest, Hq and Hkv heads, D head size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dspark.native.attention import Tables

_NEEDED = {"scale", "window_size", "enable_gqa", "seqused_k", "block_table"}


# query [T, Hq, D], keys and values [pages, page_size, Hkv, D], tables, scale, window -> [T, Hq, D]
Kernel = Callable[[Tensor, Tensor, Tensor, Tables, float | None, int | None], Tensor]


def torch_kernel() -> Kernel | None:
    """`torch.nn.attention.varlen.varlen_attn`, if it takes a page table."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    if not set(inspect.signature(varlen_attn).parameters) >= _NEEDED:
        return None

    def attend(
        q: Tensor, k: Tensor, v: Tensor, at: Tables, scale: float | None, window: int | None
    ) -> Tensor:
        left = -1 if window is None else window - 1
        out = varlen_attn(
            q,
            k,
            v,
            at.cu_q,
            None,
            at.max_q,
            at.max_k,
            scale=scale,
            window_size=(left, 0),
            enable_gqa=q.shape[1] != k.shape[2],
            seqused_k=at.used_k,
            block_table=at.blocks,
        )
        assert isinstance(out, Tensor)
        return out

    return attend


def flash_kernel() -> Kernel | None:
    """`flash_attn_varlen_func` of flash-attn, if it is installed and takes a page table."""
    try:
        from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    if "block_table" not in inspect.signature(flash_attn_varlen_func).parameters:
        return None

    def attend(
        q: Tensor, k: Tensor, v: Tensor, at: Tables, scale: float | None, window: int | None
    ) -> Tensor:
        cu_k = torch.nn.functional.pad(at.used_k.cumsum(0, dtype=torch.int32), (1, 0))
        left = -1 if window is None else window - 1
        out: Any = flash_attn_varlen_func(
            q,
            k,
            v,
            at.cu_q,
            cu_k,
            at.max_q,
            at.max_k,
            softmax_scale=scale,
            causal=True,
            window_size=(left, 0 if window is not None else -1),
            block_table=at.blocks,
        )
        made: Tensor = out
        return made

    return attend
