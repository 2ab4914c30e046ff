"""Finds the attention kernel that reads KV pages in place on this device, if there is one.

On a GPU, in order: torch's `varlen_attn` if it takes a block table, flash-attn if it is installed.
On a CPU the project's own kernel, for steps of few queries; prompts use torch's attention, whose
products are faster with many. Without a kernel keys are gathered (see `paged_attention`) and each
sequence is padded to the longest of its group. That padding takes half of attention's time on a CPU
with sixteen sequences of 260 tokens. Some builds need pages of 256 slots, so a kernel is used only
if a small case with this device, dtype and page size gives the right result.

Kernels of libraries are detected by signature, as older releases lack parameters.

Symbols: T tokens of the pass, Hq and Hkv heads, D head size.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import structlog
import torch
from torch import Tensor

from dspark.native.attention import PagedAttention, Tables

log = structlog.get_logger("dspark.verify")

# query [T, Hq, D], keys and values [pages, page_size, Hkv, D], tables, scale, window -> [T, Hq, D]
Kernel = Callable[[Tensor, Tensor, Tensor, Tables, float | None, int | None], Tensor]


def _library(module: str, name: str, *needed: str) -> Callable[..., Any] | None:
    """A function of a library, if it is installed and takes these parameters."""
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return None
    return found if set(inspect.signature(found).parameters).issuperset(needed) else None


def torch_kernel() -> Kernel | None:
    """`torch.nn.attention.varlen.varlen_attn`, if it takes a page table."""
    needed = ("scale", "window_size", "enable_gqa", "seqused_k", "block_table")
    varlen_attn = _library("torch.nn.attention.varlen", "varlen_attn", *needed)
    if varlen_attn is None:
        return None

    def attend(
        q: Tensor, k: Tensor, v: Tensor, at: Tables, scale: float | None, window: int | None
    ) -> Tensor:
        out: Tensor = varlen_attn(
            q,
            k,
            v,
            at.cu_q,
            None,
            at.max_q,
            at.max_k,
            scale=scale,
            window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=q.shape[1] != k.shape[2],
            seqused_k=at.used_k,
            block_table=at.blocks,
        )
        return out

    return attend


def flash_kernel() -> Kernel | None:
    """`flash_attn_varlen_func` of flash-attn, if it is installed and takes a page table."""
    flash = _library("flash_attn", "flash_attn_varlen_func", "block_table")
    if flash is None:
        return None

    def attend(
        q: Tensor, k: Tensor, v: Tensor, at: Tables, scale: float | None, window: int | None
    ) -> Tensor:
        cu_k = torch.nn.functional.pad(at.used_k.cumsum(0, dtype=torch.int32), (1, 0))
        out: Tensor = flash(
            q,
            k,
            v,
            at.cu_q,
            cu_k,
            at.max_q,
            at.max_k,
            softmax_scale=scale,
            causal=True,
            window_size=(-1, -1) if window is None else (window - 1, 0),
            block_table=at.blocks,
        )
        return out

    return attend


Makers = Mapping[str, Callable[[], Kernel | None]]

GPU: Makers = {"varlen_attn": torch_kernel, "flash_attn": flash_kernel}
CPU: Makers = {"cpu_kernel": PagedAttention.found}
MAKERS: dict[tuple[str, torch.dtype], Makers] = {
    ("cuda", torch.float16): GPU,
    ("cuda", torch.bfloat16): GPU,
    ("cpu", torch.float32): CPU,
}

_TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 2e-2}


def find(device: torch.device, dtype: torch.dtype, page_size: int) -> tuple[str, Kernel] | None:
    """Name and function of the first kernel that works here, or None."""
    for name, make in MAKERS.get((device.type, dtype), {}).items():
        kernel = make()
        if kernel is None:
            continue
        why = problem(kernel, device, dtype, page_size)
        if why is None:
            return name, kernel
        log.info("attention.kernel_not_used", kernel=name, page_size=page_size, reason=why)
        if (
            device.type == "cuda"
            and page_size != 256
            and problem(kernel, device, dtype, 256) is None
        ):
            log.warning(
                "attention.page_size", kernel=name, set="verify.page_size=256", page_size=page_size
            )
    return None


@torch.inference_mode()
def problem(kernel: Kernel, device: torch.device, dtype: torch.dtype, page_size: int) -> str | None:
    """Why a kernel must not be used, or None. The test case is two sequences with grouped heads on
    pages in reverse order, compared with `reference`."""
    draw = torch.Generator().manual_seed(7)
    lengths, counts, heads, kv_heads, size = (page_size + 3, 5), (4, 1), 4, 2, 64
    pages = -(-max(lengths) // page_size)
    tables = Tables(
        torch.tensor([0, 4, 5], dtype=torch.int32, device=device),
        torch.tensor(lengths, dtype=torch.int32, device=device),
        torch.arange(2 * pages - 1, -1, -1, dtype=torch.int32, device=device).view(2, pages),
        max(counts),
        max(lengths),
    )
    q = torch.randn(sum(counts), heads, size, generator=draw).to(device, dtype)
    k, v = (
        torch.randn(2 * pages, page_size, kv_heads, size, generator=draw).to(device, dtype)
        for _ in range(2)
    )
    try:
        made = kernel(q, k, v, tables, size**-0.5, None)
        expected = reference(q, k, v, tables, size**-0.5, None)
        off = float((made.float() - expected.float()).abs().max())
    except Exception as error:  # builds report what they lack in different ways
        return f"{type(error).__name__}: {error}"[:200]
    return None if off <= _TOLERANCE[dtype] else f"outputs differ by {off:.3g}"


def reference(
    q: Tensor, k: Tensor, v: Tensor, at: Tables, scale: float | None, window: int | None
) -> Tensor:
    """Attention by its formula, one sequence after the other, to compare kernels with."""
    out = torch.empty(q.shape[0], q.shape[1], v.shape[-1], dtype=q.dtype, device=q.device)
    ratio = q.shape[1] // k.shape[2]
    for n, (first, stop) in enumerate(zip(at.cu_q.tolist(), at.cu_q.tolist()[1:], strict=False)):
        used, pages = int(at.used_k[n]), at.blocks[n].long()
        keys, values = (
            pool[pages].flatten(0, 1)[:used].float().repeat_interleave(ratio, 1) for pool in (k, v)
        )
        scores = torch.einsum("qhd,khd->hqk", q[first:stop].float(), keys)
        scores *= scale if scale is not None else q.shape[-1] ** -0.5
        position = torch.arange(used - (stop - first), used, device=q.device)[:, None]
        key = torch.arange(used, device=q.device)[None]
        hidden = (
            (key > position) if window is None else (key > position) | (key <= position - window)
        )
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        out[first:stop] = torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
    return out
