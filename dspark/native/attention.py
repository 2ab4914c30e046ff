"""Attention that reads pages in place, see `attention.c`; for fp32 on a CPU, others are refused.

Symbols: T query tokens, N sequences, P pages of the longest, Hq and Hkv heads, D head size.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import structlog
import torch
from torch import Tensor

from dspark.native.compiled import kernels, parallel

log = structlog.get_logger("dspark.native")

FEWEST = 8  # queries of a sequence that every kernel takes

_Dims = ctypes.c_int32 * 11
_Strides = ctypes.c_int64 * 7
_NO_MEMORY = 1


class Tables(NamedTuple):
    """The sequences of a pass and their pages, in the form that kernels need."""

    cu_q: Tensor  # int32 [N + 1]: first token of each sequence, then T
    used_k: Tensor  # int32 [N]: keys of each sequence in pages
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

    @staticmethod
    def for_blocks() -> PagedAttention | None:
        """The kernel for calls with `own`; None if a trial against the formula fails."""
        made = PagedAttention.found()
        if made is not None and not _sound(made):
            log.warning("native.not_used", reason="a trial of blocks came out wrong")
            return None
        return made

    def __call__(
        self,
        q: Tensor,  # [T, Hq, D]
        k: Tensor,  # [pages, page size, Hkv, D]; v has the same shape and strides
        v: Tensor,
        at: Tables,
        scale: float | None = None,  # None is D ** -0.5
        window: int | None = None,
        # keys and values [T, Hkv, D] of the queries themselves
        own: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Attention of all queries, [T, Hq, D]. The last keys in pages are those of the queries,
        and a query sees keys up to its own; with `own`, all in pages and all of its sequence's own.

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
        own_k, own_v = own or (None, None)
        if own_k is not None and own_v is not None:
            own_k, own_v = own_k.contiguous(), own_v.contiguous()
            fits = own_k.dtype == own_v.dtype == torch.float32 and own_k.shape == own_v.shape
            if window is not None or not fits or own_k.shape != (tokens, k.shape[2], size):
                raise NotImplementedError(
                    "own keys and values are one for each query, and seen by all of a sequence"
                )
        out = q.new_empty(tokens, heads, size)
        failed = self._call(
            out.data_ptr(),
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            own_k.data_ptr() if own_k is not None else None,
            own_v.data_ptr() if own_v is not None else None,
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
                k.shape[2] * size,
                size,
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


@torch.inference_mode()
def _sound(kernel: PagedAttention) -> bool:
    """Whether the kernel agrees with the formula, on two sequences with pages out of order."""
    draw = torch.Generator().manual_seed(5)
    used, queries, heads, kv_heads, size = (7, 0), (3, 5), 4, 2, 64
    q, *own = (
        torch.randn(sum(queries), count, size, generator=draw)
        for count in (heads, kv_heads, kv_heads)
    )
    k, v = (torch.randn(3, 4, kv_heads, size, generator=draw) for _ in "kv")
    blocks = torch.tensor([[2, 0], [1, 1]], dtype=torch.int32)
    tables = Tables(
        torch.tensor([0, 3, 8]).int(), torch.tensor(used).int(), blocks, max(queries), max(used)
    )
    made = kernel(q, k, v, tables, own=(own[0], own[1]))
    stop, right = 0, []
    for n, count in enumerate(queries):
        rows = slice(stop, stop := stop + count)
        keys, values = (
            torch.cat(
                (pool[blocks[n].long()].flatten(0, 1)[: used[n]], mine[rows])
            ).repeat_interleave(2, 1)
            for pool, mine in ((k, own[0]), (v, own[1]))
        )
        weights = (torch.einsum("qhd,khd->hqk", q[rows], keys) * size**-0.5).softmax(-1)
        right.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.allclose(made, torch.cat(right), atol=1e-4)
