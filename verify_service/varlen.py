"""Attention kernels that read pages in place: found by signature, and tried before they are used.

In order: torch's own `varlen_attn` where it takes a block table, flash-attn where it is installed, none (keys are then
gathered, see `paged_attention`). Older releases lack parameters, some builds want pages of 256 slots: a kernel counts
only if a small case on this device, in this number format, with this page size, comes out right.

Symbols: T tokens of the pass, N sequences, P pages of the longest, Hq and Hkv heads, D head size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import structlog
import torch
from torch import Tensor

log = structlog.get_logger("dspark.verify")

_TOLERANCE = 2e-2
_NEEDED = {"scale", "window_size", "enable_gqa", "seqused_k", "block_table"}


class Tables(NamedTuple):
    """Who is in a pass, as such kernels want it."""

    cu_q: Tensor  # int32 [N + 1]: first token of each sequence, then T
    used_k: Tensor  # int32 [N]: keys of each sequence, new ones included
    blocks: Tensor  # int32 [N, P]: its pages
    max_q: int
    max_k: int


# (query [T, Hq, D], keys and values [pages, page_size, Hkv, D], tables, scale, window) -> [T, Hq, D]
Kernel = Callable[[Tensor, Tensor, Tensor, Tables, float | None, int | None], Tensor]


def torch_kernel() -> Kernel | None:
    """`torch.nn.attention.varlen.varlen_attn`, if it knows pages."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    if not set(inspect.signature(varlen_attn).parameters) >= _NEEDED:
        return None

    def attend(q: Tensor, k: Tensor, v: Tensor, at: Tables, scale: float | None, window: int | None) -> Tensor:
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
    """`flash_attn_varlen_func` of the flash-attn package, if it is installed and knows pages."""
    try:
        from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    if "block_table" not in inspect.signature(flash_attn_varlen_func).parameters:
        return None

    def attend(q: Tensor, k: Tensor, v: Tensor, at: Tables, scale: float | None, window: int | None) -> Tensor:
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


MAKERS: dict[str, Callable[[], Kernel | None]] = {"varlen_attn": torch_kernel, "flash_attn": flash_kernel}


def find(device: torch.device, dtype: torch.dtype, page_size: int) -> tuple[str, Kernel] | None:
    """The first kernel that works here, with its name."""
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return None
    for name, make in MAKERS.items():
        kernel = make()
        if kernel is None:
            continue
        why = problem(kernel, device, dtype, page_size)
        if why is None:
            return name, kernel
        log.info("attention.kernel_not_used", kernel=name, page_size=page_size, reason=why)
        if page_size != 256 and problem(kernel, device, dtype, 256) is None:
            log.warning("attention.page_size", kernel=name, set="verify.page_size=256", page_size=page_size)
    return None


@torch.inference_mode()
def problem(kernel: Kernel, device: torch.device, dtype: torch.dtype, page_size: int) -> str | None:
    """Why a kernel must not be used, or None: two sequences with grouped heads on pages out of order, by formula."""
    draw = torch.Generator().manual_seed(7)
    lengths, counts, heads, kv_heads, size = (page_size + 3, 5), (3, 1), 4, 2, 64
    tables = Tables(
        torch.tensor([0, 3, 4], dtype=torch.int32, device=device),
        torch.tensor(lengths, dtype=torch.int32, device=device),
        torch.tensor([[3, 1], [2, 0]], dtype=torch.int32, device=device),
        max(counts),
        max(lengths),
    )
    q = torch.randn(sum(counts), heads, size, generator=draw).to(device, dtype)
    k, v = (torch.randn(4, page_size, kv_heads, size, generator=draw).to(device, dtype) for _ in range(2))
    try:
        made = kernel(q, k, v, tables, size**-0.5, None)
        expected = reference(q, k, v, tables, size**-0.5, None)
        off = float((made.float() - expected.float()).abs().max())
    except Exception as error:  # whatever a build lacks is said in its own way
        return f"{type(error).__name__}: {error}"[:200]
    return None if off <= _TOLERANCE else f"outputs differ by {off:.3g}"


def reference(q: Tensor, k: Tensor, v: Tensor, at: Tables, scale: float | None, window: int | None) -> Tensor:
    """The same by formula, one sequence after the other: what kernels are held against."""
    out = torch.empty(q.shape[0], q.shape[1], v.shape[-1], dtype=q.dtype, device=q.device)
    ratio = q.shape[1] // k.shape[2]
    for n, (first, stop) in enumerate(zip(at.cu_q.tolist(), at.cu_q.tolist()[1:], strict=False)):
        used, pages = int(at.used_k[n]), at.blocks[n].long()
        keys, values = (pool[pages].flatten(0, 1)[:used].float().repeat_interleave(ratio, 1) for pool in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[first:stop].float(), keys)
        scores *= scale if scale is not None else q.shape[-1] ** -0.5
        position = torch.arange(used - (stop - first), used, device=q.device)[:, None]
        key = torch.arange(used, device=q.device)[None]
        hidden = (key > position) if window is None else (key > position) | (key <= position - window)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        out[first:stop] = torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
    return out
