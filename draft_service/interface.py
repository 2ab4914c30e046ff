"""What the services around a draft engine ask of it, and the nouns that pass through. No torch.

Two engines keep it: `engine.DraftEngine`, which runs a drafter, and `synthetic.SyntheticDraftEngine`, which sleeps.
Every method runs on the thread that owns the device; `knows`, `watermark`, `read_rows` and properties may be used from
anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from draft_service.config import DraftConfig
from dspark.pages import Held
from dspark.types import Block, Cursor, Refusal, SamplingParams
from dspark.wire.v1 import types_pb2


class DraftItem(NamedTuple):
    """One sequence of a cohort: propose a block after this anchor."""

    cursor: Cursor
    anchor: int
    features_through: int
    params: SamplingParams
    max_slots: int = 0  # 0 means a full block
    mask: bytes = b""  # what may come in the first slot, see `first_masked`; empty: anything


class Rows(NamedTuple):
    """Feature rows of one chunk."""

    sequence: int
    epoch: int
    start: int
    rows: Any  # [rows, H] on the CPU, as the engine's own `read_rows` gave them
    token_ids: Sequence[int] = ()  # the token at each position, where known


@dataclass(frozen=True, slots=True)
class DrafterShape:
    """What is announced of a drafter."""

    vocab_size: int
    hidden_size: int
    block_size: int


class DraftEnginePort(Protocol):
    """One drafter, one pool of context, the sequences that live in it."""

    @property
    def config(self) -> DraftConfig: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def projection(self) -> str: ...

    @property
    def shape(self) -> DrafterShape: ...

    @property
    def q_entries(self) -> int: ...

    @property
    def context_length(self) -> int: ...

    @property
    def calibrated(self) -> bool: ...

    @property
    def device(self) -> object: ...

    @property
    def dtype(self) -> str: ...

    @property
    def held(self) -> Held: ...

    def open(self, cursor: Cursor, reserve_tokens: int, *, owner: int = 0) -> Refusal | None: ...

    def read_rows(self, chunk: types_pb2.TensorChunk, max_rows: int) -> Any:
        """Rows of a message in the engine's own form; raises PeerError naming the field that is wrong."""

    def ingest_many(self, chunks: Sequence[Rows]) -> list[int | Refusal]: ...

    def watermark(self, sequence: int, epoch: int | None = None) -> int: ...

    def knows(self, cursor: Cursor) -> bool: ...

    def timed_draft(self, items: Sequence[DraftItem]) -> tuple[list[Block], int]: ...

    def release(self, sequence: int, epoch: int) -> bool: ...

    def release_owner(self, owner: int) -> int: ...
