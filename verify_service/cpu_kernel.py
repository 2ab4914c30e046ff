"""The kernel for CPUs that reads pages in place, see `kernels`.

Without it keys are gathered and every sequence is padded to the longest of its group, which is half of attention's
time with sixteen sequences of 260 tokens. For steps of few queries: prompts go through torch's own attention, whose
products are faster with many.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from dspark.native.compiled import kernels, parallel
from verify_service.varlen import Kernel, Tables

FEWEST = 8  # queries of a sequence that any kernel is for

_Dims = ctypes.c_int32 * 10
_Strides = ctypes.c_int64 * 5
_NO_MEMORY = 1


def queries_up_to() -> int:
    """Of one sequence: in passes with more of them, torch's own attention is faster."""
    built = kernels()
    return int(built.dspark_attend_most()) if built is not None else FEWEST


def cpu_kernel() -> Kernel | None:
    """None where there is no library for it."""
    built = kernels()
    if built is None:
        return None
    call, threads = built.dspark_attend, torch.get_num_threads()
    sharing = parallel() if threads > 1 else None
    if threads > 1 and sharing is None:
        return None  # torch's own attention has them all

    def attend(q: Tensor, k: Tensor, v: Tensor, at: Tables, scale: float | None, window: int | None) -> Tensor:
        if q.dtype != torch.float32 or v.shape != k.shape or v.stride() != k.stride() or k.stride(3) != 1:
            raise NotImplementedError("for fp32, with keys and values that are stored alike")
        q = q if q.stride(2) == 1 else q.contiguous()
        tokens, heads, size = q.shape
        out = q.new_empty(tokens, heads, size)
        failed = call(
            out.data_ptr(),
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            at.cu_q.data_ptr(),
            at.used_k.data_ptr(),
            at.blocks.data_ptr(),
            _Dims(*at.blocks.shape, k.shape[1], heads, k.shape[2], size, window or 0, at.max_q, at.max_k, len(k)),
            _Strides(q.stride(0), q.stride(1), k.stride(0), k.stride(1), k.stride(2)),
            scale if scale is not None else size**-0.5,
            sharing,
            threads,
        )
        if failed == _NO_MEMORY:
            raise MemoryError("no memory for the weights of one head")
        if failed:
            raise IndexError(f"a page is not among the {len(k)} of the pool, or a count is larger than was said")
        return out

    return attend
