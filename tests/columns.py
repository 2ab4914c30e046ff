"""What came for an order, row by row: as tests look at it, one block at a time."""

from collections.abc import Sequence

from dspark.types import Block, Cursor
from dspark.wire.blocks import Blocks


def rows_of(blocks: Blocks, cursors: Sequence[Cursor]) -> list[Block]:
    drafted = [blocks.drafted(row, length) for row, length in enumerate(blocks.lengths)]
    columns = (blocks.confidences(), blocks.empty_reasons, blocks.watermarks)
    return [
        Block(cursor, ids, sure, q, why, mark)
        for cursor, (ids, q), sure, why, mark in zip(cursors, drafted, *columns, strict=True)
    ]
