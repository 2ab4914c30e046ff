"""The engine of a drafter with weights: takes feature rows, drafts blocks for whole cohorts.

Synchronous and free of gRPC; everything runs on the one thread that owns the device. An item that
cannot be drafted gets an empty block that says why; an empty block is an ordinary block. Rows at
and past `features_through` are never read, whatever has arrived meanwhile: what a draft is made
from is then a function of the order alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog
import torch

from draft_service.config import DraftConfig
from draft_service.contexts import PASS_TOKENS, ContextStore
from draft_service.engine_core import DraftEngineCore
from draft_service.interface import DrafterShape, Rows
from draft_service.interface import DraftItem as DraftItem
from draft_service.sample_block import sample_block
from dspark.decoding.shaping import Shaper, params_problem
from dspark.errors import ConfigError, in_short
from dspark.model.calibration import IDENTITY, Calibration, load_calibration
from dspark.model.checkpoint import fingerprint, load_drafter
from dspark.model.family import Anchors, Drafter, Proposal
from dspark.model.location import locate
from dspark.model.placement import pick_device, pick_dtype, use
from dspark.runtime.process import threads_for
from dspark.types import NO_Q, Block, Cursor, Refusal, Rule, SparseQ
from dspark.wire import tensors
from dspark.wire.v1 import types_pb2

log = structlog.get_logger("dspark.draft")


class DraftEngine(DraftEngineCore):
    """A drafter with weights, on its device."""

    contexts: ContextStore

    def __init__(
        self, drafter: Drafter, calibration: Calibration, config: DraftConfig, *, version: str
    ) -> None:
        self.drafter = drafter
        self.calibrated, self.projection = calibration is not IDENTITY, drafter.fingerprint
        self.device: torch.device = drafter.device
        self.dtype = str(drafter.dtype).removeprefix("torch.")
        self._calibration = calibration
        self._lag = drafter.needs.lag
        if drafter.needs.past:  # a whole model reads them: blocks and acknowledgements wait for it
            self.job_rows = PASS_TOKENS
        try:
            contexts = ContextStore(
                drafter,
                tokens=config.context_tokens,
                page_size=config.page_size,
                max_sequences=config.max_sequences,
            )
        except (MemoryError, RuntimeError) as error:  # of numpy, of torch
            raise ConfigError(
                f"draft.context_tokens: the memory of {self.device} has no room for "
                f"{config.context_tokens} rows ({in_short(error)})"
            ) from error
        own = drafter.config
        shape = DrafterShape(own.vocab_size, drafter.width, own.block_size)
        super().__init__(config, version, contexts, shape, own.context_length)

    @staticmethod
    def load(config: DraftConfig) -> DraftEngine:
        """Loads the weights; call it on the thread that will own the device."""
        torch.set_num_threads(config.threads or threads_for(verifies=False))
        device = pick_device(config.device, key="draft.device")
        use(device)
        dtype = pick_dtype(config.dtype, device, key="draft.dtype")
        folder = locate(config.drafter, revision=config.drafter_revision)
        shared = {"target": config.target or None, "target_revision": config.target_revision}
        drafter = load_drafter(folder, dtype=dtype, device=device, **shared).requires_grad_(False)
        drafter.serve()
        calibration = load_calibration(folder, block_size=drafter.config.block_size)
        if calibration is IDENTITY:
            log.info("draft.not_calibrated", drafter=config.drafter)
        elif calibration.top_k_cut not in (None, config.q_entries):
            # Confidence was fitted for another cut of q; it still orders slots, but its product is
            # off.
            log.warning(
                "draft.calibrated_for_other_cut",
                fitted=calibration.top_k_cut,
                serving=config.q_entries,
            )
        return DraftEngine(drafter, calibration, config, version=fingerprint(folder, **shared))

    # -- contexts ---------------------------------------------------------------------------

    def read_rows(self, chunk: types_pb2.TensorChunk, max_rows: int) -> torch.Tensor:
        """Reads rows [rows, width] from a message; raises PeerError naming the wrong field."""
        return tensors.read_tensor(chunk, width=self.drafter.width, max_rows=max_rows)

    def ingest(
        self, sequence: int, epoch: int, start: int, token_ids: Sequence[int], rows: torch.Tensor
    ) -> int | Refusal:
        """Ingests rows [rows, H] of consecutive positions; the watermark afterwards, or why not."""
        return self.ingest_many([Rows(sequence, epoch, start, rows, token_ids)])[0]

    def ingest_many(self, chunks: Sequence[Rows]) -> list[int | Refusal]:
        """Ingests several chunks in one pass; each sequence's watermark afterwards, or why not."""
        return self.contexts.ingest(chunks)

    # -- rounds -----------------------------------------------------------------------------

    def _draft(self, items: Sequence[DraftItem]) -> list[Block]:
        made: dict[int, Block] = {}
        for group in self._groups(items):
            blocks = self._draft_sound([items[index] for index in group])
            made.update(zip(group, blocks, strict=True))
        return [made[index] for index in range(len(items))]

    def _sound(self, item: DraftItem) -> bool:
        position = item.cursor.anchor_position
        if self.contexts.in_order and not self._lag <= item.features_through == position:
            return False  # the anchor must directly follow the context
        return (
            not item.params.shapes
            or params_problem(item.params, self.drafter.config.vocab_size) is None
        )

    def _groups(self, items: Sequence[DraftItem]) -> list[list[int]]:
        """Splits items into batches of similar context lengths: padding then costs at most about
        as much as the work itself."""
        order = sorted(range(len(items)), key=lambda index: items[index].features_through)
        groups: list[list[int]] = []
        current: list[int] = []
        useful = 0
        for index in order:
            length = min(
                items[index].features_through, self.drafter.window or items[index].features_through
            )
            padded = (len(current) + 1) * length
            full = len(current) >= self.config.max_batch_sequences
            wasteful = padded > 2 * (useful + length) + 2048
            if current and (full or wasteful):
                groups.append(current)
                current, useful = [], 0
            current.append(index)
            useful += length
        return [*groups, current]

    def _draft_sound(self, items: list[DraftItem]) -> list[Block]:
        """Drafts a batch; if NaN rows or a bug spoil it, only the sequences at fault get empty
        blocks.

        Raises the error if every item fails with one.
        """
        try:
            return self._draft_group(items)
        except FloatingPointError:
            if len(items) == 1:
                return [self.spoilt(items[0].cursor)]
        except Exception:
            if len(items) == 1:
                raise
        blocks, failed = [], 0
        for item in items:
            try:
                blocks += self._draft_sound([item])
            except Exception as error:
                failed += 1
                if failed == len(items):
                    raise
                log.error("draft.failed", sequence=item.cursor.sequence, exc_info=error)
                blocks.append(self.spoilt(item.cursor))
        return blocks

    def _draft_group(self, items: list[DraftItem]) -> list[Block]:
        size = self.drafter.config.block_size
        wanted = [min(item.max_slots or size, size) for item in items]
        slots = size if self.config.whole_blocks else max(wanted)
        with torch.inference_mode():
            proposal, anchors = self.propose(items, slots)
            drawn = sample_block(
                proposal,
                self._calibration,
                anchors,
                [item.params for item in items],
                [item.cursor for item in items],
                slots=max(wanted),
                entries=self.q_entries,
                shapers=self._shapers(items),
                masks=[item.mask for item in items],
            )
        blocks = []
        for row, (item, own) in enumerate(zip(items, wanted, strict=True)):
            entries = 1 if item.params.greedy else drawn.q_ids.shape[-1]
            q = SparseQ.of(drawn.q_ids[row, :own, :entries], drawn.q_probs[row, :own, :entries])
            blocks.append(
                Block(
                    cursor=item.cursor,
                    token_ids=tuple(drawn.token_ids[row, :own].tolist()),
                    confidence=tuple(drawn.confidence[row, :own].tolist()),
                    q=NO_Q if item.params.rule is Rule.COUPLED else q,
                    watermark=self.contexts.watermark(item.cursor.sequence, item.cursor.epoch),
                )
            )
        return blocks

    @torch.inference_mode()
    def propose(self, items: Sequence[DraftItem], slots: int) -> tuple[Proposal, torch.Tensor]:
        """Runs the block pass over items that can be drafted: the proposal to draw from, and the
        anchors [n]."""
        if self.contexts.in_order:  # entries that an earlier failure left out
            self.contexts.catch_up([self.contexts[item.cursor.sequence] for item in items])
        members = [(item.cursor.sequence, item.features_through - self._lag) for item in items]
        # Row 0: anchors, row 1: their positions.
        facts = torch.tensor(
            [[item.anchor for item in items], [item.cursor.anchor_position for item in items]],
            dtype=torch.int64,
        )
        anchors, positions = facts.to(self.device) if self.device.type != "cpu" else facts
        at = Anchors(
            anchors,
            positions,
            self.contexts.entries(members, self.drafter.room(slots)),
            self.contexts.rows_at(members) if self._lag else None,
        )
        return self.drafter.propose(at, slots), anchors

    def _shapers(self, items: list[DraftItem]) -> list[Shaper | None] | None:
        """The logits shaper of each item, which counted its rows but not the anchor; None where
        parameters need none."""
        if not any(item.params.shapes for item in items):
            return None
        return [
            self.contexts.shaper(item.cursor.sequence, item.params, item.features_through)
            if item.params.shapes
            else None
            for item in items
        ]

    # -- for timing -------------------------------------------------------------------------

    def pretend(self, cursor: Cursor, rows: int) -> Refusal | None:
        """Opens a sequence and fills its context with rows of ones. For timing only."""
        if (problem := self.open(cursor, rows + 1)) is not None:
            return problem
        self.ingest(
            cursor.sequence, cursor.epoch, 0, [0] * rows, torch.ones(rows, self.drafter.width)
        )
        return None
