"""The draft engine without weights, which sleeps for as long as a pass takes.

Tokens and confidences of blocks and the time of a pass come from a file (`dspark.synthetic`).
Contexts are opened and filled by feature rows as real ones are; the prompt's first token, on which
a sequence's tokens depend, is known from its rows alone. Without torch.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from draft_service.config import DraftConfig
from draft_service.context_table import Context, ContextTable
from draft_service.engine_core import DraftEngineCore
from draft_service.interface import DrafterShape, DraftItem, Rows
from dspark.errors import PeerError
from dspark.synthetic.blocks import BlockMaker
from dspark.synthetic.oracle import SyntheticOracle
from dspark.synthetic.pace import DevicePace
from dspark.synthetic.rows import Values, first_token, read_rows
from dspark.synthetic.spec import SyntheticSpec
from dspark.types import Block, Refusal, RefusalReason
from dspark.wire.v1 import types_pb2


@dataclasses.dataclass(slots=True)
class _Context(Context):
    """Which rows of one sequence are here, and the first token that they carry."""

    first_token: int | None = None


class SyntheticDraftEngine(DraftEngineCore):
    """A draft engine that sleeps instead of computing."""

    contexts: ContextTable[_Context]
    calibrated = True
    device = "synthetic"
    dtype = "none"

    def __init__(self, spec: SyntheticSpec, config: DraftConfig) -> None:
        self.spec = spec
        self._oracle = SyntheticOracle(spec)
        self._blocks = BlockMaker(self._oracle, min(config.q_entries, spec.vocabulary))
        self._pace = DevicePace(spec.jitter, spec.seed + 1)
        contexts = ContextTable(
            _Context,
            tokens=config.context_tokens,
            page_size=config.page_size,
            max_sequences=config.max_sequences,
        )
        config = dataclasses.replace(config, drafter=config.drafter or "synthetic")
        shape = DrafterShape(spec.vocabulary, spec.feature_width, spec.block)
        super().__init__(
            config, f"synthetic-{spec.fingerprint}", contexts, shape, spec.context_length
        )
        self.projection = self.fingerprint

    # -- contexts ---------------------------------------------------------------------------

    def read_rows(self, chunk: types_pb2.TensorChunk, max_rows: int) -> Values:
        return read_rows(chunk, width=self.shape.hidden_size, max_rows=max_rows)

    def ingest_many(self, chunks: Sequence[Rows]) -> list[int | Refusal]:
        return [self._ingest(chunk) for chunk in chunks]

    def _ingest(self, chunk: Rows) -> int | Refusal:
        context = self.contexts.admit(chunk)
        if isinstance(context, Refusal):
            return context
        if context.first_token is None:  # every row of a sequence carries the same
            try:
                context.first_token = first_token(chunk.rows)
            except PeerError as error:
                return Refusal(RefusalReason.INVALID, str(error))
        context.add(chunk.start, chunk.start + len(chunk.rows))
        return context.watermark

    # -- rounds -----------------------------------------------------------------------------

    def _draft(self, items: Sequence[DraftItem]) -> list[Block]:
        """The blocks, after the time that passes over them take."""
        began = time.perf_counter_ns()
        contexts = [self.contexts[item.cursor.sequence] for item in items]
        made = self._blocks.make(
            cursors=[item.cursor for item in items],
            all_params=[item.params for item in items],
            first_tokens=[context.first_token or 0 for context in contexts],
            slots=[item.max_slots for item in items],
            watermarks=[context.watermark for context in contexts],
        )
        self._pass(began, items)
        return made

    def _pass(self, began_ns: int, asked: Sequence[DraftItem]) -> None:
        context = sum(item.cursor.committed_len for item in asked) / len(asked)
        most = self.config.max_batch_sequences
        seconds = sum(
            self.spec.draft.seconds(min(len(asked) - first, most), context)
            for first in range(0, len(asked), most)
        )
        self._pace.sleep_until(began_ns + int(self._pace.take(seconds) * 1e9))
