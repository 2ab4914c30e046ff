"""A step of an engine from preparation to end: packed passes that run while others are prepared.

Invariant: until the step has ended, what it reads and writes stays. States of its sequences do not
change, their pages are not reused, and a sequence dropped meanwhile is freed at its end. Pages of
other sequences may be reused: their new owner is in a later pass, and passes run one after the
other. `run` computes and changes none of this. `end` does, on the thread that owns sequences and
pages, and is always called after `run`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import structlog

from dspark.types import Refusal, RefusalReason, Verdict
from verify_service.batch_runner import BatchRunner, ExecutedBatch, PreparedBatch, VerdictBatch
from verify_service.sequences import CachedSequence

log = structlog.get_logger("dspark.verify")

FAILED = Refusal(RefusalReason.INTERNAL, "its pass failed; see the verifier's log")


class RunningStep:
    """An unfinished step. outcomes: of each item; those of items in a batch come with its end."""

    def __init__(
        self,
        step: BatchRunner,
        outcomes: list[Verdict | Refusal],
        batches: Sequence[PreparedBatch[Any]],
        began_ns: int,
    ) -> None:
        self.states: list[CachedSequence] = [state for batch in batches for state in batch.states]
        for state in self.states:
            state.in_pass = True
        self.failure: Exception | None = None  # set if no batch ran
        self._step, self._outcomes, self._batches = step, outcomes, batches
        self._ran: list[ExecutedBatch] = []
        self._spoilt: list[PreparedBatch[Any]] = []
        self._error: Exception | None = None  # of the last failed pass
        self._spent_ns = time.perf_counter_ns() - began_ns

    def run(self) -> None:
        """Runs all batches, on the computing thread."""
        began = time.perf_counter_ns()
        for batch in self._batches:
            self._run(batch)
        self.failure = None if self._ran else self._error
        self._spent_ns += time.perf_counter_ns() - began

    def _run(self, batch: PreparedBatch[Any]) -> None:
        """Runs a batch. If it fails, runs it again without prompts, then in halves, until a faulty
        item is alone. One item, or their number, may have exceeded the device's memory."""
        rows, chunks = batch.rows, batch.chunks
        try:
            self._ran.append(self._step.execute(batch))
            return
        # from the target, or from the rule: nothing of it is committed
        except Exception as error:
            log.error("pass.failed", sequences=len(rows), prompts=len(chunks), exc_info=error)
            # Its frames hold the tensors of the pass, and what follows needs the memory.
            self._error = error.with_traceback(None)
            error.__context__ = error.__cause__ = None
        self._spoilt.append(batch)
        middle = len(rows) // 2
        halves = (rows[:middle], rows[middle:]) if middle else ()
        for part in (rows,) if rows and chunks else halves:
            self._run(batch._replace(rows=part, chunks=()))  # its prompts do not run again

    def end(self) -> VerdictBatch:
        """Commits the step; returns its outcomes. Prompts of a batch that failed are broken."""
        began = time.perf_counter_ns()
        for state in self.states:
            state.in_pass = False
        tokens = prefill_tokens = 0
        for prepared in self._spoilt:
            _spoil(prepared)
        for executed in self._ran:
            prepared = executed.prepared
            try:
                committed = self._step.commit(executed)
            # a bug: some may be committed but unreported, so all fail
            except Exception as error:
                log.error("step.failed", sequences=len(prepared.rows), exc_info=error)
                _spoil(prepared)
                continue
            tokens += prepared.tokens
            for row, outcome in zip(prepared.rows, committed, strict=True):
                self._outcomes[row.place] = outcome
            prefill_tokens += sum(len(chunk.token_ids) for chunk in prepared.chunks)
        saw = [executed.saw for executed in self._ran]
        judged = VerdictBatch(
            outcomes=self._outcomes,
            tokens=tokens,
            forward_ns=self._spent_ns + time.perf_counter_ns() - began,
            near_ties=sum(each.near_ties for each in saw),
            prefill_tokens=prefill_tokens,
            labels={sequence: label for each in saw for sequence, label in each.labels.items()},
            draws=[one for each in saw for one in each.draws],
        )
        self._ran.clear()  # its tensors: the step is remembered until it is reported
        return judged


def _spoil(prepared: PreparedBatch[Any]) -> None:
    """Keeps KV blocks of a failed batch out of the prefix cache: their content is unknown. Its
    prompts cannot go on."""
    for state in prepared.states:
        state.salt = None
    for chunk in prepared.chunks:
        chunk.state.broken = FAILED
