"""Products by a processor's matrix unit, see `products.c`: fp32 rows with weights whose numbers bf16 holds exactly.

Tried against the ordinary product before its first use: what comes out wrong is not used.
"""

from __future__ import annotations

import ctypes
import functools

import structlog
import torch
from torch import Tensor
from torch.nn.functional import linear

from dspark.native.compiled import kernels, parallel

log = structlog.get_logger("dspark.native")

ROWS, DEEP, PAIR, PIECES = 16, 32, 32, 3  # rows and inputs of a tile, outputs of two, bf16 pieces of a number
MOST_ROWS = 256  # cut into pieces at a time
ALONE = 1 << 16  # numbers of a weight up to which one thread is faster than waking others


class Tiles:
    """One weight [outs, ins] for rows [..., ins], fp32 on the CPU. Make it where `available` says so."""

    def __init__(self, weight: Tensor) -> None:
        """Raises ValueError where there is no such unit, or for a weight that bf16 does not hold."""
        built = _permitted()
        if built is None or not exact(weight):
            raise ValueError("not a weight that the matrix unit multiplies as it is")
        self.outs, self.ins = weight.shape
        self._deep = -(-self.ins // DEEP) * DEEP
        self._packed = torch.empty(-(-self.outs // PAIR) * PAIR * self._deep, dtype=torch.int16)
        self.address = self._packed.data_ptr()
        self._multiply = built.dspark_tiles_multiply
        weight = weight.contiguous()
        built.dspark_tiles_pack(self.address, weight.data_ptr(), self.outs, self.ins)
        self.bytes = self._packed.numel() * 2

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., ins] -> [..., outs]. Raises NotImplementedError for tensors of another form."""
        shape = (*x.shape[:-1], self.outs)
        if bias is None:
            return self._into(x.new_empty(shape), x, adds=False)
        return self._into(x.new_empty(shape).copy_(bias), x, adds=True)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """The products added to residual [..., outs], a new tensor."""
        return self._into(
            torch.empty_like(residual, memory_format=torch.contiguous_format).copy_(residual), x, adds=True
        )

    def _into(self, out: Tensor, x: Tensor, *, adds: bool) -> Tensor:
        count = x.numel() // self.ins
        fits = x.dtype == out.dtype == torch.float32 and x.device.type == out.device.type == "cpu"
        if not fits or x.shape[-1] != self.ins or out.shape != (*x.shape[:-1], self.outs):
            raise NotImplementedError("these tensors are not of the form that the kernels for CPUs read")
        x = x.contiguous()
        most = min(-(-count // ROWS) * ROWS, MOST_ROWS)
        space = torch.empty(most * self._deep * PIECES, dtype=torch.int16)
        threads = torch.get_num_threads() if self._packed.numel() > ALONE else 1
        sharing = parallel() if threads > 1 else None
        pointers = (out.data_ptr(), x.data_ptr(), self.address, space.data_ptr())
        self._multiply(*pointers, count, self.ins, self.outs, most, adds, sharing, threads)
        return out


def exact(weight: Tensor) -> bool:
    """Whether it is fp32 on the CPU, and the unit takes its numbers as they are: finite ones that bf16 holds, none so
    small that it would read zero."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or weight.dim() != 2 or not weight.numel():
        return False
    size = weight.abs()
    taken = (size == 0.0) | ((size >= torch.finfo(torch.float32).tiny) & (size < torch.inf))
    return bool((taken & (weight.to(torch.bfloat16) == weight)).all())


@functools.cache
def _permitted() -> ctypes.CDLL | None:
    """The kernels, where there is such a unit; the system is asked once in a process whether it may be used."""
    built = kernels()
    return built if built is not None and built.dspark_tiles_ready() else None


@functools.cache
@torch.inference_mode()
def available() -> bool:
    """Whether this machine has such a unit, this process may use it, and it multiplies as it should."""
    if _permitted() is None:
        return False
    draw = torch.Generator().manual_seed(3)
    made, right = [], []
    for outs, ins, rows in ((70, 40, 1), (70, 40, 17), (70, 40, MOST_ROWS + 3), (1040, 64, 33)):  # the last is shared
        weight = torch.randn(outs, ins, generator=draw).to(torch.bfloat16).float()
        x, other = torch.randn(rows, ins, generator=draw), torch.randn(rows, outs, generator=draw)
        product, alone = Tiles(weight), linear(x, weight)
        right += [alone, alone + other]
        made += [product(x), product.plus(x, other)]
    if all(torch.allclose(one, two, atol=1e-4) for one, two in zip(made, right, strict=True)):
        return True
    log.warning("native.tiles_not_used", reason="a trial came out wrong")
    return False
