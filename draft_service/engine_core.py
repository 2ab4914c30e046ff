"""The interface of draft engines: contexts, the rows they hold, blocks, and the check of which
items can be drafted. Without torch.

Two engines implement it: `engine.DraftEngine`, which runs a drafter, and
`synthetic.SyntheticDraftEngine`, which sleeps. Every method runs on the thread that owns the
device; `read_rows` and attributes may be used on any. An item that cannot be drafted
gets an empty block that says why; an empty block is an ordinary block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from draft_service.config import DraftConfig
from draft_service.context_table import ContextTable
from draft_service.interface import DrafterShape, DraftItem, Rows
from dspark.pages import EngineUsage
from dspark.types import Block, Cursor, EmptyReason, Refusal
from dspark.wire.v1 import types_pb2


class DraftEngineCore(ABC):
    """One drafter, its pool of context rows, and the sequences that hold some."""

    projection: str  # fingerprint of the projection that rows must come from
    calibrated: bool
    job_rows = 2048  # rows of a device job, from which on no chunk is added to it
    device: Any
    dtype: str

    def __init__(
        self,
        config: DraftConfig,
        version: str,
        contexts: ContextTable[Any],
        shape: DrafterShape,
        longest: int,
    ) -> None:
        """longest: the drafter's own limit of context length, in tokens."""
        self.config, self.fingerprint, self.shape, self.contexts = config, version, shape, contexts
        own = config.context_length
        # blocks past it are empty
        self.context_length = longest if own is None else min(longest, own)

    @property
    def q_entries(self) -> int:
        """Number of entries sent of each draft distribution."""
        return int(min(self.config.q_entries, self.shape.vocab_size))

    @property
    def held(self) -> EngineUsage:
        pages = self.contexts.pages
        return EngineUsage(len(self.contexts), pages.total - pages.free, pages.total)

    def open(self, cursor: Cursor, reserve_tokens: int, *, owner: int = 0) -> Refusal | None:
        """Reserves rows for a sequence, or returns why not. Rows past `context_length` are not
        reserved, because no block needs them."""
        return self.contexts.open(cursor, min(reserve_tokens, self.context_length), owner)

    @abstractmethod
    def read_rows(self, chunk: types_pb2.TensorChunk, max_rows: int) -> Any:
        """Reads rows [rows, width] from a message, in the engine's own form; raises PeerError
        naming the wrong field."""

    @abstractmethod
    def ingest_many(self, chunks: Sequence[Rows]) -> list[int | Refusal]:
        """Ingests several chunks in one pass; each sequence's watermark afterwards, or why not."""

    def draft(self, items: Sequence[DraftItem]) -> list[Block]:
        """One block per item, in order."""
        blocks = [self._empty(item) for item in items]
        asked = [item for item, block in zip(items, blocks, strict=True) if block is None]
        made = iter(self._draft(asked) if asked else ())
        return [next(made) if block is None else block for block in blocks]

    @abstractmethod
    def _draft(self, items: Sequence[DraftItem]) -> list[Block]:
        """One block per item, in order, of items that can be drafted; at least one."""

    def _sound(self, item: DraftItem) -> bool:
        """Whether this drafter can draft the item at all, rows and room apart."""
        return True

    def spoilt(self, cursor: Cursor) -> Block:
        """The empty block of an item that failed by a bug or by NaN rows."""
        watermark = self.contexts.watermark(cursor.sequence, cursor.epoch)
        return Block(cursor, empty_reason=EmptyReason.INVALID, watermark=watermark)

    def _empty(self, item: DraftItem) -> Block | None:
        """The empty block of an item that cannot be drafted, None for one that can."""
        cursor, shape = item.cursor, self.shape
        watermark = self.contexts.watermark(item.cursor.sequence, item.cursor.epoch)
        fits = (
            0 <= item.anchor < shape.vocab_size
            and 0 <= item.features_through <= cursor.anchor_position
        )
        if not (fits and self._sound(item)):
            why = EmptyReason.INVALID
        elif self.contexts.find(cursor.sequence, cursor.epoch) is None:
            why = EmptyReason.UNKNOWN_SEQUENCE
        elif cursor.anchor_position + shape.block_size > self.context_length:
            why = EmptyReason.TOO_LONG
        elif watermark < item.features_through:
            why = EmptyReason.FEATURES_MISSING
        else:
            return None
        return Block(cursor, empty_reason=why, watermark=watermark)
