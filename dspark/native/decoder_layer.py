"""A whole decoder layer in one call, see `decoder_layer.c`: for a few rows the way to its parts and back takes as long
as they do. The numbers are those of the parts (`layer`, `tiles`, `attention`), which are tried by formula.

A target's tokens have slots in the pool, which their keys and values go into. A drafter's blocks have none: their
tokens see each other and what is in the pages of their sequence, and nothing of them is kept.

Symbols: T tokens of the pass, H hidden size, Hq and Hkv heads, D head size, W width of the mlp.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from dspark.native.attention import Tables
from dspark.native.compiled import kernels, parallel
from dspark.native.tiles import DEEP, MOST_ROWS, PIECES, ROWS, Tiles

_P, _I32, _I64, _F32 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float
_NO_MEMORY, _NO_SLOT = 1, 3


def _fields(kinds: Sequence[tuple[type, str]]) -> list[tuple[str, type]]:
    return [(name, kind) for kind, names in kinds for name in names.split()]


class _Layer(ctypes.Structure):
    _fields_ = _fields(
        (
            (_P, "first second heads_norm qkv out gate_up down"),
            (_I32, "width heads kv_heads size wide window"),
            (_F32, "first_eps second_eps heads_eps scale"),
        )
    )


class _Pool(ctypes.Structure):
    _fields_ = _fields(((_P, "keys values"), (_I64, "slot head"), (_I32, "slots")))


class _Pass(ctypes.Structure):
    _fields_ = _fields(
        (
            (_P, "cos sin at cu_q used_k blocks space pieces sharing"),
            (_I64, "cos_row sin_row"),
            (_I32, "tokens sequences pages page_size max_q max_k most threads"),
        )
    )


@dataclass(frozen=True, slots=True)
class Weights:
    """Of one layer, fp32; products as `Tiles` hold them."""

    first: Tensor  # [H] of the norm before attention, and its epsilon
    first_eps: float
    second: Tensor  # [H] before the mlp
    second_eps: float
    heads_norm: Tensor | None  # [Hq + Hkv, D]
    heads_eps: float
    qkv: Tiles  # queries, keys, values
    out: Tiles
    gate_up: Tiles
    down: Tiles


class OnePass:
    """What all layers of a pass are told: who is in it, and room to compute in."""

    def __init__(
        self,
        slots: Tensor | None,  # [T] int64; None of blocks
        tables: Tables,
        page_size: int,
        rotation: tuple[Tensor, Tensor],  # cos and sin, [T, D / 2] each
    ) -> None:
        """Raises NotImplementedError for tensors of another form."""
        cos, sin = rotation
        tokens = len(cos)
        if not (
            tables.fit()
            and (slots is None or (slots.dtype == torch.int64 and slots.is_contiguous() and slots.is_cpu))
            and (slots is None or len(slots) == tokens)
            and (cos.shape == sin.shape and cos.dim() == 2 and cos.stride(1) == sin.stride(1) == 1)
            and all(_like(each) for each in rotation)
        ):
            raise NotImplementedError("these tensors are not of the form that the kernels for CPUs read")
        self.tokens, self.half = cos.shape
        self.of_blocks = slots is None
        threads = torch.get_num_threads()
        self._kept = (slots, tables, rotation)
        self._space, self._pieces = torch.empty(0), torch.empty(0, dtype=torch.int16)
        self.told = _Pass(
            cos.data_ptr(),
            sin.data_ptr(),
            slots.data_ptr() if slots is not None else None,
            tables.cu_q.data_ptr(),
            tables.used_k.data_ptr(),
            tables.blocks.data_ptr(),
            None,
            None,
            parallel() if threads > 1 else None,
            cos.stride(0),
            sin.stride(0),
            tokens,
            *tables.blocks.shape,
            page_size,
            tables.max_q,
            tables.max_k,
            min(-(-tokens // ROWS) * ROWS, MOST_ROWS),
            threads,
        )
        self.at = ctypes.addressof(self.told)

    def make_room(self, floats: int, widest: int) -> None:
        """floats: of a token. widest: inputs of a product, most."""
        if self._space.numel() < floats * self.tokens:
            self._space = torch.empty(floats * self.tokens, dtype=torch.float32)
            self.told.space = self._space.data_ptr()
        if self._pieces.numel() < (room := self.told.most * -(-widest // DEEP) * DEEP * PIECES):
            self._pieces = torch.empty(room, dtype=torch.int16)
            self.told.pieces = self._pieces.data_ptr()


class WholeLayer:
    """One layer. Keys and values of tokens with slots go there as by `NativeLayer.spread`, pairs side by side; those of
    blocks are as by `NativeLayer.turn`, and so must be what is in their pages."""

    def __init__(self, weights: Weights, *, heads: int, kv_heads: int, scale: float | None, window: int | None) -> None:
        """Raises NotImplementedError for weights that do not belong together."""
        built = kernels()
        width, joined = weights.qkv.ins, weights.qkv.outs
        size, wide = joined // (heads + 2 * kv_heads), weights.down.ins
        norms = [(weights.first, (width,)), (weights.second, (width,)), (weights.heads_norm, (heads + kv_heads, size))]
        if (
            built is None
            or heads % kv_heads
            or joined != (heads + 2 * kv_heads) * size
            or (weights.out.ins, weights.out.outs) != (heads * size, width)
            or (weights.gate_up.ins, weights.gate_up.outs, weights.down.outs) != (width, 2 * wide, width)
            or not all(norm is None or (norm.shape == shape and _fp32(norm)) for norm, shape in norms)
        ):
            raise NotImplementedError("these weights are no layer that the kernels for CPUs compute as a whole")
        self._call, self._weights, self._size = built.dspark_layer, weights, size
        self._entry = (kv_heads, size)
        self._floats = width + joined + 2 * (heads + kv_heads) * size + 3 * wide
        self._widest = max(width, heads * size, wide)
        head_weights = weights.heads_norm.data_ptr() if weights.heads_norm is not None else None
        tiles = (each.address for each in (weights.qkv, weights.out, weights.gate_up, weights.down))
        self._told = _Layer(
            *(weights.first.data_ptr(), weights.second.data_ptr(), head_weights, *tiles),
            *(width, heads, kv_heads, size, wide, window or 0),
            *(weights.first_eps, weights.second_eps, weights.heads_eps),
            scale if scale is not None else size**-0.5,
        )
        self._layer = ctypes.addressof(self._told)
        self._pools: tuple[ReferenceType[Tensor], ...] = ()  # that `_pool` tells of; they may go before the layer
        self._pool = _Pool()

    def __call__(self, x: Tensor, keys: Tensor, values: Tensor, told: OnePass) -> Tensor:
        """x [T, H], keys and values [slots, Hkv, D], stored alike -> [T, H].

        Raises NotImplementedError for tensors of another form, IndexError for tables or slots that name what is not
        there.
        """
        if x.shape != (told.tokens, self._told.width) or not _fp32(x) or 2 * told.half != self._size:
            raise NotImplementedError("these tensors are not of the form that the kernels for CPUs read")
        if told.of_blocks and self._told.window:
            raise NotImplementedError("a block's tokens see all of their sequence")
        if not self._pools or self._pools[0]() is not keys or self._pools[1]() is not values:
            self._take(keys, values)
        told.make_room(self._floats, self._widest)
        out = torch.empty_like(x)
        failed = self._call(out.data_ptr(), x.data_ptr(), self._layer, ctypes.addressof(self._pool), told.at)
        if failed == _NO_MEMORY:
            raise MemoryError("no memory for the weights of one head")
        if failed:
            what = "a slot" if failed == _NO_SLOT else "a page, or a count that was not said,"
            raise IndexError(f"{what} is not among the {len(keys)} slots of the pool")
        return out

    def _take(self, keys: Tensor, values: Tensor) -> None:
        alike = keys.shape == values.shape and keys.stride() == values.stride() and keys.stride(2) == 1
        if not alike or keys.shape[1:] != self._entry or not all(_like(each) for each in (keys, values)):
            raise NotImplementedError("these tensors are not of the form that the kernels for CPUs read")
        self._pools = ref(keys), ref(values)
        self._pool = _Pool(keys.data_ptr(), values.data_ptr(), keys.stride(0), keys.stride(1), len(keys))


def _like(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.is_cpu


def _fp32(tensor: Tensor) -> bool:
    return _like(tensor) and tensor.is_contiguous()
