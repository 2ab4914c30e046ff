"""The journal: the committed tokens of each request, from which clients resume, also after a
restart.

It extends invariant 6, committed before shown, beyond the process: what `write` has written is read
by the next coordinator. A request is compared by digest, not by prompt. An answer stays resumable
while it runs, and for a while after its end or the loss of its client, because the end may not have
arrived. A journal that can no longer be written logs this once, sets a metric, and requests go on.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace

import numpy as np
import structlog
from google.protobuf.message import DecodeError

from coordinator.answers.answer import CommittedTokens, End
from coordinator.cells import cell_wire
from coordinator.cells.journal_file import JournalFile
from coordinator.requests.request import Request
from dspark.errors import PeerError
from dspark.runtime.telemetry import Metrics
from dspark.types import Rule, ScoredToken
from dspark.wire import codec
from dspark.wire.v1 import journal_pb2

log = structlog.get_logger("dspark.journal")

MAX_KEPT = 4096  # requests that no longer run, as of a search; the oldest is dropped first
EXPIRE_S = 1.0  # between two searches for expired entries
KEPT_SHARE = 0.5  # share of a segment for their tokens; the rest is for new commits


@dataclass(slots=True)
class JournaledAnswer:
    """The committed part of one answer."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[ScoredToken] = field(default_factory=list)
    # the highest that `begins` noted: tokens may have been drawn under it, by this target
    epoch: int = 0
    target: str = ""
    end: End | None = None

    def begins(self, epoch: int, target: str) -> None:
        if epoch >= self.epoch:
            self.epoch, self.target = epoch, target

    def add(self, piece: CommittedTokens) -> None:
        self.tokens += piece.tokens
        self.logprobs += piece.logprobs
        self.end = self.end or piece.end


@dataclass(slots=True, eq=False)
class JournalEntry:
    """One request in the journal. opened: its record."""

    opened: journal_pb2.JournalRequest
    rule: Rule
    answers: list[JournaledAnswer]
    running: bool = False
    touched: float = 0.0  # unix seconds
    size: int = 0  # approximate bytes of its answers in a segment; set when it no longer runs


def digest(request: Request) -> bytes:
    """SHA-256 of the prompt, sampling parameters and limits. Seed and rule are left out, since the
    deployment chooses what a request leaves open: the entry holds those in use."""
    plain = replace(request.params, seed=0, choice=0, rule=Rule.BLOCK)
    params = codec.write_sampling(plain).SerializeToString(deterministic=True)
    rest = repr(
        (request.max_tokens, sorted(request.stop_ids), request.choices, request.cache_salt)
    ).encode()
    return hashlib.sha256(np.asarray(request.prompt, np.uint32).tobytes() + rest + params).digest()


class Journal:
    """Entries by request id. Without a `file`, as after a disk has failed, they live in memory
    only."""

    def __init__(
        self,
        file: JournalFile | None,
        *,
        keep_s: float,
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._file, self._keep_s, self._metrics, self._now = file, keep_s, metrics, clock
        self._entries: dict[str, JournalEntry] = {}
        self._unwritten = journal_pb2.JournalBatch()
        # (request number, piece), not yet written
        self._said: list[tuple[int, CommittedTokens]] = []
        self._numbers, self._expired_at = 0, -math.inf
        if file is not None:
            self._read(file)
            file.begin([*self._snapshot()])
            log.info("journal.read", requests=len(self._entries))

    def find(self, request_id: str) -> JournalEntry | None:
        return self._entries.get(request_id)

    def open(self, request: Request, known: list[JournaledAnswer] | None = None) -> JournalEntry:
        """Adds an entry for an admitted request; a resumed one continues its `known` answers."""
        if len(self._entries) > 2 * MAX_KEPT or self._now() >= self._expired_at + EXPIRE_S:
            self._expire()
        self._numbers += 1
        rule, answers = request.params.rule, known or nothing_said(request.choices)
        opened = journal_pb2.JournalRequest(
            number=self._numbers,
            request_id=request.id,
            digest=digest(request),
            seed=request.params.seed,
            rule=int(rule),
            answers=request.choices,
        )
        entry = JournalEntry(opened, rule, answers, True, self._now())
        self._entries[request.id] = entry
        self._unwritten.requests.append(opened)
        self._unwritten.epochs.extend(_epochs(entry))
        self._said += _pieces(entry)
        return entry

    def begins(self, entry: JournalEntry, index: int, epoch: int, target: str) -> None:
        """Notes an epoch of an answer and the fingerprint of its target, which `write` stores
        before tokens are drawn under them. A resumed answer is drawn under a higher epoch, by the
        same target."""
        entry.answers[index].begins(epoch, target)
        number = entry.opened.number
        self._unwritten.epochs.add(number=number, index=index, epoch=epoch, target=target)

    def committed(self, entry: JournalEntry, piece: CommittedTokens) -> None:
        """Notes committed tokens, under an epoch that `begins` noted, and the end; `write` stores
        them."""
        said = entry.answers[piece.index]
        end = piece.end if said.end is None else None
        if piece.tokens or end is not None:
            said.add(piece)
            added = CommittedTokens(piece.tokens, end, piece.index, piece.logprobs)
            self._said.append((entry.opened.number, added))

    def left(self, entry: JournalEntry) -> None:
        """Marks the request as no longer running; it can be resumed for a while."""
        entry.running, entry.touched, entry.size = False, self._now(), _size(entry)

    def write(self) -> None:
        """Writes everything noted to the operating system; gives up the file if that fails."""
        batch, said = self._unwritten, self._said
        if not (batch.requests or batch.epochs or said):
            return
        self._unwritten, self._said = journal_pb2.JournalBatch(), []
        if self._file is None:
            return
        batch.unix_s = self._now()
        cell_wire.write_commits(batch.said, said)
        try:
            self._file.append(batch.SerializeToString())
            if self._file.full:
                self._expire()
                self._file.begin([*self._snapshot()])
        except OSError as error:
            self._failed(error)
            self._file = None  # closing it here could wait for the disk

    def close(self) -> None:
        self.write()
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self._failed(error)

    def _failed(self, error: OSError) -> None:
        effect = "answers cannot be resumed after a restart"
        log.error("journal.failed", error=error.strerror, effect=effect)
        self._metrics.journal_failed.set(1)

    def _expire(self) -> None:
        self._expired_at = self._now()
        idle = [entry for entry in self._entries.values() if not entry.running]
        idle.sort(key=lambda entry: entry.touched)
        count, size = len(idle), sum(entry.size for entry in idle)
        room = KEPT_SHARE * self._file.segment_bytes if self._file is not None else math.inf
        for entry in idle:
            late = entry.touched + self._keep_s < self._now()
            if not late and count <= MAX_KEPT and size <= room:
                break  # the later ones stay as well
            del self._entries[entry.opened.request_id]
            if not late:
                why = "too_many" if count > MAX_KEPT else "too_large"
                self._metrics.dropped.labels(kind="journaled", reason=why).inc()
            count, size = count - 1, size - entry.size

    def _snapshot(self) -> Iterator[bytes]:
        """Yields one record for each request that may still be resumed."""
        for entry in self._entries.values():
            when = self._now() if entry.running else entry.touched
            batch = journal_pb2.JournalBatch(
                unix_s=when, requests=[entry.opened], epochs=_epochs(entry)
            )
            cell_wire.write_commits(batch.said, [*_pieces(entry)])
            yield batch.SerializeToString()

    def _read(self, file: JournalFile) -> None:
        numbers: dict[int, JournalEntry] = {}
        for record in file.read():
            batch = journal_pb2.JournalBatch()
            try:
                batch.ParseFromString(record)
                self._take(batch, numbers)
            except (DecodeError, PeerError, KeyError, IndexError, ValueError) as error:
                log.warning("journal.not_understood", error=repr(error))
                self._metrics.dropped.labels(kind="journaled", reason="not_understood").inc()
        self._numbers = max(numbers, default=0)
        for entry in self._entries.values():
            entry.size = _size(entry)
        self._expire()

    def _take(self, batch: journal_pb2.JournalBatch, numbers: dict[int, JournalEntry]) -> None:
        for opened in batch.requests:
            # a copy, as a part of a message keeps the whole in memory
            own, rule = deepcopy(opened), Rule(opened.rule)
            entry = JournalEntry(own, rule, nothing_said(opened.answers))
            numbers[opened.number] = self._entries[opened.request_id] = entry
            entry.touched = batch.unix_s
        for begun in batch.epochs:
            numbers[begun.number].answers[begun.index].begins(begun.epoch, begun.target)
            numbers[begun.number].touched = batch.unix_s
        for number, piece in cell_wire.read_commits(batch.said):
            numbers[number].answers[piece.index].add(piece)
            numbers[number].touched = batch.unix_s


def nothing_said(answers: int) -> list[JournaledAnswer]:
    return [JournaledAnswer() for _ in range(answers)]


def _epochs(entry: JournalEntry) -> list[journal_pb2.JournalEpoch]:
    return [
        journal_pb2.JournalEpoch(
            number=entry.opened.number, index=index, epoch=said.epoch, target=said.target
        )
        for index, said in enumerate(entry.answers)
        if said.epoch or said.target
    ]


def _pieces(entry: JournalEntry) -> Iterator[tuple[int, CommittedTokens]]:
    """Yields (request number, piece) for each answer, with all its committed tokens."""
    for index, said in enumerate(entry.answers):
        yield (
            entry.opened.number,
            CommittedTokens(tuple(said.tokens), said.end, index, tuple(said.logprobs)),
        )


def _size(entry: JournalEntry) -> int:
    """Approximate bytes of the answers: three for a token, eight for each log-probability with its
    id."""
    return sum(
        3 * len(said.tokens) + sum(8 + 8 * len(one.top_ids) for one in said.logprobs)
        for said in entry.answers
    )
