"""What a coordinator asks of a drafter: contexts opened, cohorts drafted, contexts released."""

from __future__ import annotations

from typing import Any

import structlog

from draft_service.cohorts import Cohorts
from draft_service.interface import DraftItem, Engine
from dspark.errors import InvalidRequest, Overloaded, PeerError, Unavailable
from dspark.runtime.wire_limits import KIB, MIB, Bounds
from dspark.runtime.worker import Worker
from dspark.runtime.worker_session import WorkerSession
from dspark.types import Block, Cursor, EmptyReason, Law, Refusal, RefusalReason
from dspark.wire import codec
from dspark.wire.cohorts import MAX_ROWS, fit, read_cursors, write_blocks
from dspark.wire.v1 import draft_pb2

log = structlog.get_logger("dspark.draft")

_COLUMN = 5 * MAX_ROWS  # bytes
BOUNDS = Bounds(
    {5: ("release", MIB)},
    inner={
        3: Bounds({1: ("cursor", KIB), 3: ("law", 64 * KIB)}),
        4: Bounds(
            {
                1: ("cursors", 8 * _COLUMN),
                2: ("anchors", _COLUMN),
                3: ("features_through", _COLUMN),
                4: ("max_slots", _COLUMN),
            }
        ),
    },
)

_NO_LAW: tuple[int, Law | None] = (0, None)


class DraftSession(WorkerSession[Engine]):
    """Commands of one stream."""

    event = draft_pb2.DraftEvent

    def __init__(self, worker: Worker[Engine], cohorts: Cohorts) -> None:
        super().__init__(worker)
        self._cohorts = cohorts
        self._laws: dict[int, tuple[int, Law]] = {}  # (epoch, law) of every sequence opened here

    async def _carry_out(
        self, kind: str, command: draft_pb2.DraftCommand, too_large: InvalidRequest | None, wrong: bool
    ) -> draft_pb2.DraftEvent:
        if too_large is not None:
            event = self._refuse(kind, command, too_large)
        elif kind == "draft":
            event = draft_pb2.DraftEvent(blocks=await self._draft(command.draft, wrong))
        elif kind == "open":
            event = draft_pb2.DraftEvent(opened=await self._open(command.open, wrong))
        else:
            event = draft_pb2.DraftEvent(released=await self._release(command.release, wrong))
        event.drafter_version = self._engine.fingerprint
        return event

    def _refuse(self, kind: str, command: draft_pb2.DraftCommand, why: InvalidRequest) -> draft_pb2.DraftEvent:
        """What is too large is not carried out. Whoever counts blocks or what was freed sees that there are none."""
        log.warning("command.too_large", kind=kind, field=str(why))
        self._worker.refused(RefusalReason.INVALID)
        if kind == "draft":
            return draft_pb2.DraftEvent(blocks=draft_pb2.Blocks())
        if kind == "release":
            return draft_pb2.DraftEvent(released=draft_pb2.DraftReleased())
        refusal = codec.write_refusal(Refusal(RefusalReason.INVALID, str(why)))
        return draft_pb2.DraftEvent(opened=draft_pb2.Opened(cursor=command.open.cursor, refusal=refusal))

    # -- the three commands -----------------------------------------------------------------

    async def _draft(self, cohort: draft_pb2.DraftCohort, wrong: bool) -> dict[str, Any]:
        """The fields of the answer."""
        try:
            items = self._read_items(cohort, wrong)
        except PeerError as error:
            # Whoever counts the blocks sees that there are none; which sequences were meant cannot be said.
            log.warning("draft.malformed", field=str(error))
            self._worker.refused(RefusalReason.INVALID)
            return {}
        able = [item for item in items if isinstance(item, DraftItem)]
        wait_s = min(cohort.wait_us, self._engine.config.max_wait_us) * 1e-6
        try:
            drafted = await self._cohorts.draft(able, wait_s)
            blocks, forward_ns = drafted.blocks, drafted.forward_ns
        except Exception as error:
            # Failing is a matter of speed, never of the request: empty blocks, and a loud log.
            log.error("draft.failed", exc_info=error)
            self._metrics.refusals.labels(reason="internal").inc(len(able))
            blocks, forward_ns = [Block(item.cursor, empty_reason=EmptyReason.INVALID) for item in able], 0
        if len(able) < len(items):
            answers = iter(blocks)
            blocks = [next(answers) if isinstance(item, DraftItem) else item for item in items]
        return write_blocks(blocks, forward_ns)

    def _read_items(self, cohort: draft_pb2.DraftCohort, wrong: bool) -> list[DraftItem | Block]:
        """What is asked of each sequence, or its empty block. Raises PeerError naming the column that does not fit."""
        cursors = read_cursors(cohort.cursors)
        anchors, through, slots = cohort.anchors, cohort.features_through, cohort.max_slots
        fit(len(cursors), anchors=anchors, features_through=through, max_slots=slots)
        if wrong:
            return [Block(cursor, empty_reason=EmptyReason.UNKNOWN_SEQUENCE) for cursor in cursors]
        self._leases.mention(cohort.cursors.sequence)
        laws = [self._laws.get(cursor.sequence, _NO_LAW)[1] for cursor in cursors]
        return [
            Block(cursor, empty_reason=EmptyReason.UNKNOWN_SEQUENCE)
            if law is None
            else DraftItem(cursor, anchor, rows, law, most)
            for cursor, anchor, rows, law, most in zip(cursors, anchors, through, laws, slots, strict=True)
        ]

    async def _open(self, command: draft_pb2.Open, wrong: bool) -> draft_pb2.Opened:
        cursor = codec.read_cursor(command.cursor)
        refusal: Refusal | None
        if wrong:
            refusal = Refusal(RefusalReason.WRONG_INCARNATION, "the command is for another process")
        elif self._worker.draining.is_set():
            refusal = Refusal(RefusalReason.NO_PAGES, "the drafter is draining")
        else:
            try:
                law = codec.read_law(command.law)
                refusal = await self._device.run(
                    lambda: self._engine.open(cursor, command.reserve_tokens, owner=self._owner), urgent=True
                )
                if refusal is None:
                    self._keep_law(cursor, law)
            except PeerError as error:
                refusal = Refusal(RefusalReason.INVALID, str(error))
            except (Overloaded, Unavailable) as error:
                refusal = Refusal(RefusalReason.NO_PAGES, str(error))
        if refusal is None:
            self._leases.open(cursor.sequence, cursor.epoch)
            self._worker.note_load()
            return draft_pb2.Opened(cursor=command.cursor)
        self._worker.refused(refusal.reason)
        return draft_pb2.Opened(cursor=command.cursor, refusal=codec.write_refusal(refusal))

    async def _release(self, command: draft_pb2.DraftRelease, wrong: bool) -> draft_pb2.DraftReleased:
        named = [] if wrong else [(ref.sequence, ref.epoch) for ref in command.sequences[:MAX_ROWS]]
        freed = await self._free_named(named)
        for sequence, epoch in named:
            if self._laws.get(sequence, _NO_LAW)[0] <= epoch:
                self._laws.pop(sequence, None)
        return draft_pb2.DraftReleased(sequences=freed)

    def _keep_law(self, cursor: Cursor, law: Law) -> None:
        """Bounded by what the engine holds: another stream may have taken a sequence over."""
        self._laws[cursor.sequence] = (cursor.epoch, law)
        if len(self._laws) > self._engine.config.max_sequences:
            held = self._engine.knows
            self._laws = {at: kept for at, kept in self._laws.items() if held(Cursor(at, kept[0], 0, 0))}
