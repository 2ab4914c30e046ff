"""Feature rows between synthetic workers: real bytes of the announced width, whose first values
name the sequence.

A row carries the first prompt id of its sequence, eight bits in each of three values. From it a
drafter computes the sequence's tokens, as a real one does from hidden states. Without torch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dspark.errors import PeerError
from dspark.synthetic.oracle import Ints
from dspark.wire.finite import finite, rows_in
from dspark.wire.v1 import types_pb2

DTYPE = "bfloat16"

Values = npt.NDArray[np.uint16]  # bits of bfloat16, never computed with


def row_values(first_tokens: Ints, width: int) -> Values:
    """[n, width] rows of sequences whose prompts begin with these tokens."""
    values = np.zeros((len(first_tokens), width), "<u2")
    values[:, :3] = first_tokens.astype("<i8")[:, None].view(np.uint8)[:, :3]
    return values


def read_rows(chunk: types_pb2.TensorChunk, *, width: int, max_rows: int) -> Values:
    """Reads rows [rows, width] of a message, unchanged; raises PeerError naming the wrong field."""
    data = rows_in(chunk, width, max_rows, {DTYPE: 2 * width})
    values: Values = np.frombuffer(data, "<u2").reshape(-1, width)
    if not finite(DTYPE, values):
        raise PeerError("rows.data: a value is not finite")
    return values


def first_token(values: Values) -> int:
    """The first prompt id that the first row carries; raises PeerError for no synthetic row."""
    low, middle, high = values[0, :3].tolist()
    if max(low, middle, high) > 255:
        raise PeerError("rows.data: not rows of a synthetic verifier")
    return int(high << 16 | middle << 8 | low)
