"""The greedy walk under the vanilla sequential head in one call, see `markov.c`: slots wait for each other, so what a
slot takes beside its product counts as often as there are slots. The numbers are those of `Tiles`.

Symbols: n sequences, k slots, V vocabulary, r rank.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from dspark.native.compiled import kernels, parallel
from dspark.native.tiles import ALONE, DEEP, MOST_ROWS, PIECES, ROWS, Tiles

_Dims = ctypes.c_int32 * 5


class GreedyWalk:
    """Over one head."""

    def __init__(self, w1: Tensor, w2: Tiles) -> None:
        """w1 [V, r] fp32, w2 [V, r]. NotImplementedError for weights of another form."""
        built = kernels()
        fp32 = w1.dtype == torch.float32 and w1.is_cpu and w1.is_contiguous()
        if built is None or not fp32 or w1.shape != (w2.outs, w2.ins):
            raise NotImplementedError("these tensors are not of the form that the kernels for CPUs read")
        self._call, self._w1, self._w2 = built.dspark_walk, w1, w2

    def __call__(self, base: Tensor, anchors: Tensor) -> Tensor:
        """base [n, k, V] fp32, anchors [n] -> ids [n, k]: where base + bias is largest, the first of equals.

        What is drawn where base is no number says nothing. Raises NotImplementedError for tensors of another form,
        IndexError for an anchor outside the vocabulary.
        """
        n, slots, vocab = base.shape
        fits = base.dtype == torch.float32 and base.is_cpu and base.stride(2) == 1 and vocab == self._w2.outs
        if not fits or anchors.shape != (n,) or anchors.dtype != torch.int64 or not anchors.is_cpu:
            raise NotImplementedError("these tensors are not of the form that the kernels for CPUs read")
        anchors, rank = anchors.contiguous(), self._w2.ins
        ids = torch.empty(n, slots, dtype=torch.int64)
        space, most = torch.empty(n * (rank + vocab)), min(-(-n // ROWS) * ROWS, MOST_ROWS)
        pieces = torch.empty(most * -(-rank // DEEP) * DEEP * PIECES, dtype=torch.int16)
        threads = torch.get_num_threads() if rank * vocab > ALONE else 1
        outside = self._call(
            ids.data_ptr(),
            base.data_ptr(),
            base.stride(0),
            base.stride(1),
            anchors.data_ptr(),
            self._w1.data_ptr(),
            self._w2.address,
            space.data_ptr(),
            pieces.data_ptr(),
            _Dims(n, slots, vocab, rank, most),
            parallel() if threads > 1 else None,
            threads,
        )
        if outside:
            raise IndexError(f"an anchor is not among the {vocab} of the vocabulary")
        return ids
