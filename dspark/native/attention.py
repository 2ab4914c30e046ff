"""Attention that reads pages in place, see `attention.c`; for fp32 on a CPU, others are refused.

Symbols: T query tokens, N sequences, P pages of the longest, Hq and Hkv heads, D head size.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from dspark.native.compiled import kernels, parallel

FEWEST = 8  # queries of a sequence that every kernel takes

_Dims = ctypes.c_int32 * 11
_Strides = ctypes.c_int64 * 5
_NO_MEMORY = 1


class Tables(NamedTuple):
    """The sequences of a pass and their pages, in the form that kernels need."""

    cu_q: Tensor  # int32 [N + 1]: first token of each sequence, then T
    used_k: Tensor  # int32 [N]: keys of each sequence
    blocks: Tensor  # int32 [N, P]: pages of each sequence
    max_q: int
    max_k: int

    def fit(self) -> bool:
        """Whether dtypes, layouts and lengths are as a kernel assumes; it checks values itself."""
        given = (self.cu_q, self.used_k, self.blocks)
        alike = all(
            one.dtype == torch.int32 and one.is_cpu and one.is_contiguous() for one in given
        )
        return alike and len(self.cu_q) == len(self.used_k) + 1 == len(self.blocks) + 1


def queries_up_to() -> int:
    """Most queries of one sequence for the kernel; beyond, torch's own attention is faster."""
    built = kernels()
    return int(built.dspark_attend_most()) if built is not None else FEWEST


class PagedAttention:
    """The compiled kernel, run on the threads that torch has when this is made."""

    def __init__(self, built: ctypes.CDLL) -> None:
        self._call, self._threads = built.dspark_attend, torch.get_num_threads()
        self._sharing = parallel() if self._threads > 1 else None

    @staticmethod
    def found() -> PagedAttention | None:
        """The kernel; None without a library for it, or if it cannot use torch's threads."""
        built = kernels()
        made = PagedAttention(built) if built is not None else None
        return (
            made if made is not None and (made._threads == 1 or made._sharing is not None) else None
        )

    def __call__(
        self,
        q: Tensor,  # [T, Hq, D]
        k: Tensor,  # [pages, page size, Hkv, D]; v has the same shape and strides
        v: Tensor,
        at: Tables,
        scale: float | None = None,  # None is D ** -0.5
        window: int | None = None,
    ) -> Tensor:
        """Attention of all queries, [T, Hq, D]. The last keys are those of the queries, and a query
        sees keys up to its own.

        Raises NotImplementedError for tensors of another form, IndexError for tables that name
        missing pages, MemoryError.
        """
        tokens, heads, size = q.shape
        if (
            v.shape != k.shape
            or v.stride() != k.stride()
            or k.stride(3) != 1
            or not all(map(_fp32_on_cpu, (q, k, v)))
        ):
            raise NotImplementedError(
                "for fp32 on a CPU, with keys and values that are stored alike"
            )
        if k.shape[3] != size or heads % k.shape[2]:
            raise NotImplementedError(
                "heads of queries and keys are of one size, and each key's serves as many of them"
            )
        if not at.fit():
            raise NotImplementedError("tables are int32, row after row, of the same sequences")
        q = q if q.stride(2) == 1 else q.contiguous()
        out = q.new_empty(tokens, heads, size)
        failed = self._call(
            out.data_ptr(),
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            at.cu_q.data_ptr(),
            at.used_k.data_ptr(),
            at.blocks.data_ptr(),
            _Dims(
                *at.blocks.shape,
                k.shape[1],
                heads,
                k.shape[2],
                size,
                window or 0,
                at.max_q,
                at.max_k,
                len(k),
                tokens,
            ),
            _Strides(
                q.stride(0),
                q.stride(1),
                k.stride(0),
                k.stride(1),
                k.stride(2),
            ),
            scale if scale is not None else size**-0.5,
            self._sharing,
            self._threads,
        )
        if failed == _NO_MEMORY:
            raise MemoryError("no memory for the weights of one head")
        if failed:
            raise IndexError(
                f"a page is not among the {len(k)} of the pool, or a count is not what was said"
            )
        return out


def _fp32_on_cpu(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.is_cpu
