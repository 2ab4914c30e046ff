"""Codec of a verifier's orders for blocks, with the feature rows that travel with them. Without
torch.

Orders are columns. Anything invalid breaks the protocol: PeerError names the field, and the stream
ends with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import ge
from typing import Any, NamedTuple

from dspark.errors import PeerError
from dspark.rounds.events import OrderRow
from dspark.rounds.plan import MAX_SLOTS
from dspark.wire.cohorts import MAX_ROWS, bounds, fit
from dspark.wire.v1 import draft_pb2

# Fields of the message, in the order of those of an `Order` and of an `OrderRow`, whose last one
# follows from the number of rows.
_COLUMNS = ("sequence", "epoch", "round", "committed_len", "anchors", "slots")
PART = 256 << 10  # bytes of rows in one message, unless one row has more
MAX_FEATURE_ROWS = 64 * MAX_ROWS  # of one order: `Waits.inline_rows` of every sequence
MAX_MASKS = 16 << 20  # bytes of all masks of one order


class PackedRows(NamedTuple):
    """Feature rows as they travel: see `TensorChunk`."""

    dtype: str
    rows: int
    width: int
    data: bytes | memoryview  # of bytes; copied once, into messages
    zeroed: int = 0  # rows that were not finite, and are zeros here

    def chunk(self, first: int = 0, rows: int | None = None) -> dict[str, Any]:
        """The fields of a `TensorChunk` of `rows` rows from `first` on, or of all the rest."""
        each, count = (
            len(self.data) // max(self.rows, 1),
            self.rows - first if rows is None else rows,
        )
        data = bytes(self.data[first * each : (first + count) * each])
        return {"dtype": self.dtype, "shape": [count, self.width], "data": data}


class Order(NamedTuple):
    """An order for the blocks of a cohort. Columns of n values but for `token_ids`."""

    number: int
    sequences: list[int]
    epochs: list[int]
    rounds: list[int]
    committed_lens: list[int]
    anchors: list[int]
    slots: list[int]
    rows: list[int]  # feature rows that travel with it, the last at position committed_len - 2
    token_ids: list[int]  # of all those rows
    masks: list[bytes]  # tokens allowed in the first slot, see `first_masked`; empty: all


def write_order(
    number: int,
    asked: Sequence[OrderRow],
    rows: Sequence[int],
    token_ids: Sequence[int],
    features: PackedRows | None,
    masks: Sequence[bytes] = (),
) -> Iterator[draft_pb2.RoundsCommand]:
    """Yields the order, then messages with the rows that do not fit into it. features: all of
    `rows`. masks: one per sequence, or none; left out where they exceed MAX_MASKS bytes.

    Built from plain values, because a message that is put into another one is copied, rows and all.
    """
    first, *rest = _parts(features)
    columns = dict(zip(_COLUMNS, zip(*asked, strict=True), strict=False))
    order: dict[str, Any] = {
        "order": number,
        **columns,
        "rows": rows,
        "token_ids": token_ids,
        "features": first,
    }
    if masks and sum(map(len, masks)) <= MAX_MASKS:
        order |= {"mask_bytes": list(map(len, masks)), "masks": b"".join(masks)}
    yield draft_pb2.RoundsCommand(order=order)
    for part in rest:
        yield draft_pb2.RoundsCommand(rows={"order": number, "features": part})


def _parts(features: PackedRows | None) -> list[dict[str, Any] | None]:
    if features is None:
        return [None]
    rows, size = features.rows, len(features.data)
    step = rows if size <= PART else max(PART * rows // size, 1)
    return [features.chunk(first, min(step, rows - first)) for first in range(0, rows, step)]


def read_order(message: draft_pb2.Order) -> Order:
    """Reads an order; raises PeerError naming the wrong field."""
    count = len(message.sequence)
    if not 0 < count <= MAX_ROWS:
        raise PeerError(f"order.sequence: {count} are not in 1..{MAX_ROWS}")
    if message.order == 0:
        raise PeerError("order.order: must be 1 or more")
    columns = {name: getattr(message, name)[:] for name in (*_COLUMNS, "rows")}
    fit(count, of="order.", **columns)
    slots, rows = columns["slots"], columns["rows"]
    if min(slots) < 1 or max(slots) > MAX_SLOTS:
        raise PeerError(f"order.slots: {min(slots)} to {max(slots)} are not in 1..{MAX_SLOTS}")
    if any(map(ge, rows, columns["committed_len"])):
        raise PeerError("order.rows: more than there are positions before the anchor")
    total = sum(rows)
    if total > MAX_FEATURE_ROWS:
        raise PeerError(f"order.rows: {total} are over the limit of {MAX_FEATURE_ROWS}")
    fit(total, of="order.", token_ids=message.token_ids)
    if message.HasField("features") != (total > 0):
        raise PeerError(f"order.features: {'absent' if total else 'there'}, with {total} rows")
    sizes = message.mask_bytes[:]
    if sizes:
        fit(count, of="order.", mask_bytes=sizes)
    packed = message.masks  # each read copies it whole
    if sum(sizes) != len(packed) or any(size % 4 for size in sizes):
        raise PeerError(f"order.masks: {len(packed)} bytes, expected {sum(sizes)} in words of 4")
    masks = (
        [packed[first:last] for first, last in pairwise(bounds(sizes))] if packed else [b""] * count
    )
    if len(set(columns["sequence"])) < count:
        raise PeerError("order.sequence: one comes twice")
    return Order._make((message.order, *columns.values(), message.token_ids[:], masks))
