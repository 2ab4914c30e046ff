"""What lean layers do between their products, each in one call, see `layer.c`.

Symbols: T tokens of the pass, Hq and Hkv heads, D head size.
"""

from __future__ import annotations

import ctypes
import functools

import torch
from torch import Tensor

from dspark.native.library import library

_Dims = ctypes.c_int32 * 5
_Strides = ctypes.c_int64 * 4


class NativeLayer:
    """Of one process; takes fp32 on a CPU."""

    def __init__(self, built: ctypes.CDLL) -> None:
        self._norm, self._gate = built.dspark_norm, built.dspark_gate
        self._turn, self._spread = built.dspark_turn, built.dspark_spread

    @staticmethod
    def found(like: Tensor) -> NativeLayer | None:
        """For tensors of this device and number format; None where there is no library for it."""
        built = library() if like.device.type == "cpu" and like.dtype == torch.float32 else None
        return _native(built) if built is not None else None

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / rms(x) * weight over the last axis; a new tensor."""
        x = x.contiguous()
        out = torch.empty_like(x)
        width = x.shape[-1]
        self._norm(out.data_ptr(), x.data_ptr(), weight.data_ptr(), x.numel() // width, width, eps)
        return out

    def gate(self, both: Tensor) -> Tensor:
        """both [..., 2W]: silu of its first half times its second, [..., W]."""
        both = both.contiguous()
        width = both.shape[-1] // 2
        out = both.new_empty(*both.shape[:-1], width)
        self._gate(out.data_ptr(), both.data_ptr(), both.numel() // (2 * width), width)
        return out

    def turn(self, rows: Tensor, weights: Tensor, eps: float, angles: Tensor) -> Tensor:
        """The first heads of rows [..., heads or more, D], as many as weights [heads, D], normed and turned by angles
        [..., D] (cos | sin): [..., heads, D], pairs (i, i + D/2) where they were."""
        rows, angles = rows.contiguous(), angles.contiguous()
        heads, size = weights.shape
        out = rows.new_empty(*rows.shape[:-2], heads, size)
        row = rows.shape[-2] * size
        if angles.shape != (*rows.shape[:-2], size) or angles.dtype != torch.float32 or rows.shape[-2] < heads:
            raise NotImplementedError("for fp32 angles, one row of them per row of heads")
        tokens = rows.numel() // row
        pointers = (each.data_ptr() for each in (out, rows, weights, angles))
        self._turn(*pointers, tokens, heads, size, row, eps)
        return out

    def spread(
        self,
        qkv: Tensor,  # [T, Hq + 2 Hkv, D], contiguous
        weights: Tensor | None,  # [Hq + Hkv, D] of the norms of queries and keys
        eps: float,
        rotation: tuple[Tensor, Tensor],  # cos and sin, [1, T, D] each
        keys: Tensor,  # [slots, Hkv, D], and so are values; stored alike
        values: Tensor,
        slots: Tensor,  # [T] int64
        heads: int,
    ) -> Tensor:
        """Norms and turns queries and keys, writes keys and values into their slots; the queries [T, Hq, D].

        Raises NotImplementedError for tensors of another form, IndexError for a slot outside the pool.
        """
        cos, sin = rotation
        tokens, width, size = qkv.shape
        kv_heads = (width - heads) // 2
        fits = (
            (cos.shape == sin.shape == (1, tokens, size))
            and cos.dtype == sin.dtype == keys.dtype == torch.float32
            and keys.stride() == values.stride()
            and keys.shape[1:] == (kv_heads, size)
            and cos.stride(2) == sin.stride(2) == keys.stride(2) == 1
        )
        if not fits:
            raise NotImplementedError("for fp32 rotations of whole heads, and keys and values that are stored alike")
        q = qkv.new_empty(tokens, heads, size)
        outside = self._spread(
            q.data_ptr(),
            qkv.data_ptr(),
            weights.data_ptr() if weights is not None else None,
            cos.data_ptr(),
            sin.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            slots.data_ptr(),
            _Dims(tokens, heads, kv_heads, size, keys.shape[0]),
            _Strides(keys.stride(0), keys.stride(1), cos.stride(1), sin.stride(1)),
            eps,
        )
        if outside:
            raise IndexError(f"a slot is not among the {keys.shape[0]} of the pool")
        return q


@functools.cache
def _native(built: ctypes.CDLL) -> NativeLayer:
    return NativeLayer(built)
