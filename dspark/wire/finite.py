"""Checks of received rows: their shape and size, and whether values are finite, by their bits and
without a copy of them. Without torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from dspark.errors import PeerError
from dspark.wire.v1 import types_pb2

# the bits of the exponent: infinity and NaN have all of them set
EXPONENT = {"bfloat16": 0x7F80, "float16": 0x7C00, "float32": 0x7F800000}


def finite(dtype: str, bits: npt.NDArray[np.unsignedinteger]) -> bool:
    """Whether no value is infinite or NaN; bits: the values as unsigned integers of their size.

    Read as signed integers, positive infinity and NaN are the largest values; read as unsigned
    ones, the negative ones are.
    """
    exponent, sign = EXPONENT[dtype], 1 << (8 * bits.itemsize - 1)
    signed = bits.view(f"<i{bits.itemsize}")
    return int(signed.max(initial=0)) < exponent and int(bits.max(initial=0)) < sign + exponent


# bytes of a value, and of what is sent once for a row, by dtype
BYTES = {"bfloat16": (2, 0), "float16": (2, 0), "float32": (4, 0), "float8_e4m3": (1, 4)}


def bytes_in(chunk: types_pb2.TensorChunk) -> int:
    """Bytes of the rows of a sound chunk; reading `data` to count them would copy it."""
    (rows, width), (each, once) = chunk.shape, BYTES[chunk.dtype]
    return rows * (width * each + once)


def rows_in(
    chunk: types_pb2.TensorChunk, width: int, max_rows: int, sizes: Mapping[str, int]
) -> bytes:
    """The bytes of a chunk of 1 to max_rows rows. sizes: bytes of a row, by dtype. Raises PeerError
    naming the wrong field."""
    if chunk.dtype not in sizes:
        raise PeerError(f"rows.dtype: {chunk.dtype[:32]!r} is not one of {', '.join(sizes)}")
    shape = tuple(chunk.shape)
    if len(shape) != 2 or shape[1] != width:
        raise PeerError(f"rows.shape: {shape[:4]} is not [rows, {width}]")
    if not 0 < shape[0] <= max_rows:
        raise PeerError(f"rows.shape: {shape[0]} rows are not in 1..{max_rows}")
    # reading `chunk.data` copies it each time
    data, expected = chunk.data, shape[0] * sizes[chunk.dtype]
    if len(data) != expected:
        raise PeerError(f"rows.data: {len(data)} bytes, expected {expected}")
    return data
