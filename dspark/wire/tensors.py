"""Torch tensors to chunks and back: a declared dtype, an exact shape, a byte count, finite values. Nothing else."""

from __future__ import annotations

import math

import numpy as np
import torch

from dspark.errors import PeerError
from dspark.wire.v1 import types_pb2

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
# All exponent bits, and the unsigned integers they are looked for in: cheaper than a torch operation for a few rows.
_EXPONENT = {torch.bfloat16: (0x7F80, "<u2"), torch.float16: (0x7C00, "<u2"), torch.float32: (0x7F800000, "<u4")}


def write_tensor(tensor: torch.Tensor) -> types_pb2.TensorChunk:
    """A chunk of a dense tensor of any device; row-major, little-endian."""
    data = tensor.detach().to("cpu").contiguous().view(torch.uint8).numpy().tobytes()
    return types_pb2.TensorChunk(dtype=_NAMES[tensor.dtype], shape=list(tensor.shape), data=data)


def read_tensor(chunk: types_pb2.TensorChunk, *, width: int, max_rows: int) -> torch.Tensor:
    """[rows, width] on the CPU, owning its memory.

    Raises PeerError naming the field that is wrong; nothing is allocated before the sizes agree.
    """
    dtype = _DTYPES.get(chunk.dtype)
    if dtype is None:
        raise PeerError(f"rows.dtype: {chunk.dtype[:32]!r} is not one of {', '.join(_DTYPES)}")
    shape = tuple(chunk.shape)
    if len(shape) != 2 or shape[1] != width:
        raise PeerError(f"rows.shape: {shape[:4]} is not [rows, {width}]")
    if not 0 < shape[0] <= max_rows:
        raise PeerError(f"rows.shape: {shape[0]} rows are not in 1..{max_rows}")
    data = chunk.data
    expected = math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise PeerError(f"rows.data: {len(data)} bytes, expected {expected}")
    exponent, unsigned = _EXPONENT[dtype]
    if ((np.frombuffer(data, unsigned) & exponent) == exponent).any():  # infinity or NaN
        raise PeerError("rows.data: a value is not finite")
    return torch.frombuffer(bytearray(data), dtype=dtype).view(shape)
