"""What layers do between their products, each in one call, see `layer.c`. Takes fp32 on a CPU, and says so.

Tried by formula before its first use: what comes out wrong is not used.

Symbols: T tokens of the pass, Hq and Hkv heads, D head size.
"""

from __future__ import annotations

import ctypes
import functools

import structlog
import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from dspark.native.compiled import kernels

log = structlog.get_logger("dspark.native")

_Dims = ctypes.c_int32 * 6
_Strides = ctypes.c_int64 * 4
_SIDE_BY_SIDE, _WHERE_THEY_WERE = 1, 0


class NativeLayer:
    """Its methods raise NotImplementedError for tensors of a form that the library would misread."""

    def __init__(self, built: ctypes.CDLL) -> None:
        self._norm, self._gate = built.dspark_norm, built.dspark_gate
        self._turn, self._spread = built.dspark_turn, built.dspark_spread

    @staticmethod
    def found(like: Tensor) -> NativeLayer | None:
        """For tensors of this device and number format; None where there is no library for it."""
        built = kernels() if like.device.type == "cpu" and like.dtype == torch.float32 else None
        return _native(built) if built is not None else None

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / rms(x) * weight [W] over the last axis; a new tensor."""
        width = x.shape[-1]
        _check(_fp32(x, weight) and weight.shape == (width,) and weight.is_contiguous())
        x = x.contiguous()
        out = torch.empty_like(x)
        self._norm(out.data_ptr(), x.data_ptr(), weight.data_ptr(), x.numel() // width, width, eps)
        return out

    def gate(self, both: Tensor) -> Tensor:
        """both [..., 2W]: silu of its first half times its second, [..., W]."""
        _check(_fp32(both))
        both = both.contiguous()
        width = both.shape[-1] // 2
        out = both.new_empty(*both.shape[:-1], width)
        self._gate(out.data_ptr(), both.data_ptr(), both.numel() // (2 * width), width)
        return out

    def turn(self, rows: Tensor, weights: Tensor, eps: float, angles: Tensor) -> Tensor:
        """The first heads of rows [..., heads or more, D], as many as weights [heads, D], normed and turned by angles
        [..., D] (cos | sin): [..., heads, D], pairs (i, i + D/2) where they were."""
        heads, size = weights.shape
        _check(
            _fp32(rows, weights, angles)
            and weights.is_contiguous()
            and rows.shape[-1] == size
            and rows.shape[-2] >= heads
            and angles.shape == (*rows.shape[:-2], size)
        )
        rows, angles = rows.contiguous(), angles.contiguous()
        out = rows.new_empty(*rows.shape[:-2], heads, size)
        row = rows.shape[-2] * size
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
        _check(
            _fp32(qkv, cos, sin, keys, values)
            and qkv.is_contiguous()
            and (weights is None or (_fp32(weights) and weights.shape == (heads + kv_heads, size)))
            and (weights is None or weights.is_contiguous())
            and (cos.shape == sin.shape == (1, tokens, size))
            and (keys.shape == values.shape and keys.shape[1:] == (kv_heads, size))
            and keys.stride() == values.stride()
            and cos.stride(2) == sin.stride(2) == keys.stride(2) == 1
            and (slots.shape == (tokens,) and slots.dtype == torch.int64 and slots.is_contiguous())
        )
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
            _Dims(tokens, heads, kv_heads, size, keys.shape[0], _SIDE_BY_SIDE),
            _Strides(keys.stride(0), keys.stride(1), cos.stride(1), sin.stride(1)),
            eps,
        )
        if outside:
            raise IndexError(f"a slot is not among the {keys.shape[0]} of the pool")
        return q

    def store(
        self,
        kv: Tensor,  # [T, 2 Hkv, D]: keys, then values
        weights: Tensor,  # [Hkv, D] of the keys' norm
        eps: float,
        angles: Tensor,  # [T, D] (cos | sin)
        keys: Tensor,  # [slots, Hkv, D], and so are values; stored alike
        values: Tensor,
        slots: Tensor,  # [T] int64
    ) -> None:
        """Norms and turns keys, pairs (i, i + D/2) where they were; writes both into their slots.

        Raises NotImplementedError for tensors of another form, IndexError for a slot outside the pool.
        """
        tokens, both, size = kv.shape
        kv_heads = both // 2
        _check(
            _fp32(kv, weights, angles, keys, values)
            and kv.is_contiguous()
            and (weights.shape == (kv_heads, size) and weights.is_contiguous())
            and (angles.shape == (tokens, size) and angles.stride(1) == keys.stride(2) == 1)
            and (keys.shape == values.shape and keys.shape[1:] == (kv_heads, size))
            and keys.stride() == values.stride()
            and (slots.shape == (tokens,) and slots.dtype == torch.int64 and slots.is_contiguous() and slots.is_cpu)
        )
        outside = self._spread(
            None,
            kv.data_ptr(),
            weights.data_ptr(),
            angles.data_ptr(),
            angles.data_ptr() + size // 2 * angles.element_size(),
            keys.data_ptr(),
            values.data_ptr(),
            slots.data_ptr(),
            _Dims(tokens, 0, kv_heads, size, keys.shape[0], _WHERE_THEY_WERE),
            _Strides(keys.stride(0), keys.stride(1), angles.stride(0), angles.stride(0)),
            eps,
        )
        if outside:
            raise IndexError(f"a slot is not among the {keys.shape[0]} of the pool")


def _fp32(*tensors: Tensor) -> bool:
    return all(each.dtype == torch.float32 and each.device.type == "cpu" for each in tensors)


def _check(fits: bool) -> None:
    if not fits:
        raise NotImplementedError("these tensors are not of the form that the kernels for CPUs read")


@functools.cache
def _native(built: ctypes.CDLL) -> NativeLayer | None:
    made = NativeLayer(built)
    if _sound(made):
        return made
    log.warning("native.not_used", reason="a trial came out wrong")
    return None


@torch.inference_mode()
def _sound(native: NativeLayer) -> bool:
    """Whether each function says what its formula says, of a few numbers."""
    draw = torch.Generator().manual_seed(3)
    x, weight = torch.randn(3, 40, generator=draw), torch.randn(40, generator=draw)
    qkv, weights = torch.randn(3, 4, 16, generator=draw), torch.randn(3, 16, generator=draw)
    angle = torch.randn(3, 8, generator=draw)
    pools, slots = torch.zeros(4, 5, 1, 16), torch.tensor([4, 0, 2])
    turns = torch.complex(angle.cos(), angle.sin())[:, None]
    normed = rms_norm(qkv[:, :3], (16,), None, 1e-6) * weights
    turned = torch.complex(normed[..., :8], normed[..., 8:]) * turns
    rotation = (angle.cos().repeat(1, 2)[None], angle.sin().repeat(1, 2)[None])
    angles = torch.cat((angle.cos(), angle.sin()), dim=-1)
    native.store(qkv[:, 2:].contiguous(), weights[2:], 1e-6, angles, pools[2], pools[3], slots)
    pairs = (
        (native.norm(x, weight, 1e-6), rms_norm(x, (40,), weight, 1e-6)),
        (native.gate(x), silu(x[:, :20]) * x[:, 20:]),
        (
            native.turn(qkv, weights, 1e-6, angles),
            torch.cat((turned.real, turned.imag), dim=-1),
        ),
        (native.spread(qkv, weights, 1e-6, rotation, pools[0], pools[1], slots, 2), _side_by_side(turned[:, :2])),
        (pools[0, slots], _side_by_side(turned[:, 2:])),
        (pools[1, slots], qkv[:, 3:]),
        (pools[2, slots], torch.cat((turned[:, 2:].real, turned[:, 2:].imag), dim=-1)),
        (pools[3, slots], qkv[:, 3:]),
    )
    return all(torch.allclose(made, expected, rtol=1e-4, atol=1e-5) for made, expected in pairs)


def _side_by_side(turned: Tensor) -> Tensor:
    return torch.view_as_real(turned).flatten(-2)
