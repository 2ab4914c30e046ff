"""Feature rows between synthetic workers: real bytes of the announced width, whose first values name the sequence.

A row carries the first prompt id of its sequence in three values of eight bits, which bfloat16 holds exactly; from it
a drafter learns what its tokens hang on, as a real one does from hidden states. No torch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dspark.errors import PeerError
from dspark.synthetic.oracle import Ints
from dspark.wire.finite import finite
from dspark.wire.v1 import types_pb2

DTYPE = "bfloat16"

Values = npt.NDArray[np.uint16]  # bits of bfloat16: nobody computes with them


def row_values(first_tokens: Ints, width: int) -> Values:
    """[n, width] rows of sequences whose prompts begin with these tokens."""
    values = np.zeros((len(first_tokens), width), "<u2")
    said = np.stack([first_tokens >> 16, (first_tokens >> 8) & 255, first_tokens & 255], axis=1).astype(np.float32)
    values[:, :3] = said.view(np.uint32) >> 16  # bfloat16 is the upper half of float32
    return values


def read_rows(chunk: types_pb2.TensorChunk, *, width: int, max_rows: int) -> Values:
    """[rows, width] as they came; raises PeerError naming the field that is wrong."""
    if chunk.dtype != DTYPE:
        raise PeerError(f"rows.dtype: {chunk.dtype[:32]!r} is not {DTYPE}")
    shape = tuple(chunk.shape)
    if len(shape) != 2 or shape[1] != width:
        raise PeerError(f"rows.shape: {shape[:4]} is not [rows, {width}]")
    if not 0 < shape[0] <= max_rows:
        raise PeerError(f"rows.shape: {shape[0]} rows are not in 1..{max_rows}")
    data = chunk.data  # a copy, each time
    if len(data) != shape[0] * width * 2:
        raise PeerError(f"rows.data: {len(data)} bytes, expected {shape[0] * width * 2}")
    values: Values = np.frombuffer(data, "<u2").reshape(shape)
    if not finite(DTYPE, values):
        raise PeerError("rows.data: a value is not finite")
    return values


def first_token(values: Values) -> int:
    """What the first row says of its sequence; raises PeerError when it is no synthetic row."""
    high, middle, low = (values[0, :3].astype(np.uint32) << 16).view(np.float32).tolist()
    if not all(value.is_integer() and 0 <= value < 256 for value in (high, middle, low)):
        raise PeerError("rows.data: not rows of a synthetic verifier")
    return (int(high) << 16) | (int(middle) << 8) | int(low)
