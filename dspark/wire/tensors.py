"""Codec of torch tensors as chunks: a declared dtype, an exact shape, a byte count, finite values.

`float8_e4m3` is for rows that may be rounded: each row is sent as its float32 scale, then a byte
per value, and read as float32.
"""

from __future__ import annotations

import numpy as np
import torch

from dspark.errors import PeerError
from dspark.wire.finite import BYTES, finite, rows_in
from dspark.wire.v1 import types_pb2

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
FP8 = "float8_e4m3"
_LARGEST = 448.0  # of e4m3
_SCALE = 4  # bytes


def write_rows(rows: torch.Tensor, form: str) -> types_pb2.TensorChunk:
    """A chunk of rows [n, H] as bfloat16, float16, float32 or FP8; rows of width 0 are never FP8,
    as they have no scale."""
    dtype, data = pack_rows(rows, form)
    return types_pb2.TensorChunk(dtype=dtype, shape=list(rows.shape), data=bytes(data))


def pack_rows(rows: torch.Tensor, form: str) -> tuple[str, memoryview]:
    """The (dtype, data) of a chunk as `write_rows` makes it. Rows that need no conversion are not
    copied, and must not change while the data is in use."""
    if form != FP8 or not rows.shape[-1]:
        kind = _DTYPES.get(form, torch.bfloat16)
        return _NAMES[kind], _bytes_of(rows.to(kind))
    wide = rows.detach().to("cpu", torch.float32)
    scale = wide.abs().amax(dim=-1, keepdim=True).div_(_LARGEST)
    scale = torch.where(scale > 0, scale, 1.0)
    values = (wide / scale).clamp_(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn)
    return FP8, _bytes_of(
        torch.cat([scale.contiguous().view(torch.uint8), values.view(torch.uint8)], dim=-1)
    )


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return tensor.detach().to("cpu").contiguous().view(torch.uint8).numpy().reshape(-1).data


def read_tensor(chunk: types_pb2.TensorChunk, *, width: int, max_rows: int) -> torch.Tensor:
    """Reads rows [rows, width] to the CPU, into memory of their own. Raises PeerError naming the
    wrong field."""
    sizes = {name: width * each + once for name, (each, once) in BYTES.items()}
    data, dtype = rows_in(chunk, width, max_rows, sizes), _DTYPES.get(chunk.dtype)
    if dtype is None:
        return _read_fp8(data, width)
    if not data:
        return torch.empty(*chunk.shape, dtype=dtype)
    if not finite(chunk.dtype, np.frombuffer(data, f"<u{dtype.itemsize}")):
        raise PeerError("rows.data: a value is not finite")
    return torch.frombuffer(bytearray(data), dtype=dtype).view(*chunk.shape)


def _read_fp8(data: bytes, width: int) -> torch.Tensor:
    rows = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, _SCALE + width)
    scale = rows[:, :_SCALE].contiguous().view(torch.float32)
    wide: torch.Tensor = rows[:, _SCALE:].contiguous().view(torch.float8_e4m3fn).float() * scale
    if not bool((torch.isfinite(wide).all(dim=-1, keepdim=True) & (scale > 0)).all()):
        raise PeerError("rows.data: a value is not finite")
    return wide
