"""Runs the passes of `RoundLoop` on an engine and reports them.

Methods run one at a time, on the engine's thread or in a turn (see `round_driver`). The inputs of a
pass are taken when the loop requests it, as its sequences may leave before it has ended.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dspark.rounds.control import PassReport, Timing
from dspark.rounds.events import PassEnded, PassRow, Report, RoundReport, RunPass, Told
from dspark.rounds.loop import RoundLoop
from dspark.rounds.spans import RoundSpans
from dspark.runtime.telemetry import Metrics
from dspark.types import NO_Q, Cursor, Refusal, ScoredToken, Verdict
from verify_service.batch_runner import VerdictBatch
from verify_service.drafters import AnsweredOrder, Drafters
from verify_service.engine_core import EngineCore
from verify_service.running_step import RunningStep
from verify_service.sequences import VerifyItem, failed

REMEMBERED = 4  # ended passes kept; without remaining sequences a pass is never reported


class RunningPass(NamedTuple):
    """An unfinished pass."""

    number: int
    cohort: int
    rows: Sequence[PassRow]
    step: RunningStep


class EndedPass(NamedTuple):
    """A pass that has ended."""

    running: RunningPass
    judged: VerdictBatch  # outcomes of each row
    ended: float


class RoundPasses:
    """The passes of one loop."""

    def __init__(
        self,
        engine: EngineCore,
        metrics: Metrics,
        rounds: RoundLoop,
        drafters: Drafters,
    ) -> None:
        self._engine, self._metrics, self._rounds = engine, metrics, rounds
        self._drafters = drafters
        self._ran: dict[int, EndedPass] = {}  # recently ended passes, by number
        self._spans = RoundSpans()

    def begin(self, run: RunPass) -> RunningPass:
        """Prepares a pass; a row that cannot be read is refused alone. Raises what the engine
        raises."""
        step = self._engine.begin([self._item(row) for row in run.rows])
        cohort = self._rounds.plan.cohort(run.rows[0].sequence)
        return RunningPass(run.number, cohort, run.rows, step)

    def _item(self, row: PassRow) -> VerifyItem | Refusal:
        ids: tuple[int, ...] = ()
        q, version = NO_Q, ""
        try:
            if row.prefix:
                answer: AnsweredOrder = row.answer
                ids, q = answer.blocks.drafted(row.place, row.prefix)
                version = answer.version
            return VerifyItem(Cursor(*row[:4]), row.anchor, ids, q, version)
        except Exception as error:
            return failed(row.sequence, error)

    def ended(self, running: RunningPass) -> list[Told]:
        """Ends a pass; returns its events for the loop."""
        judged = self._engine.end(running.step)
        if running.step.failure is not None:
            # the device failed, not a sequence
            return [PassEnded(running.number, [None] * len(running.rows))]
        spoilt: list[PassRow] = []
        sound: list[PassRow] = []
        for row, outcome in zip(running.rows, judged.outcomes, strict=True):
            if row.prefix and isinstance(outcome, Verdict):
                (spoilt if outcome.spoilt else sound).append(row)
        self._ran[running.number] = EndedPass(running, judged, time.monotonic())
        while len(self._ran) > REMEMBERED:
            self._note(self._ran.pop(next(iter(self._ran))).judged)
        return [PassEnded(running.number, judged.outcomes), *self._drafters.judged(spoilt, sound)]

    def _note(self, judged: VerdictBatch) -> None:
        metrics = self._metrics
        metrics.coupled_near_ties.inc(judged.near_ties)
        for form in [
            each.form for each in judged.outcomes if isinstance(each, Verdict) and each.form.forced
        ]:
            metrics.form_tokens.inc(len(form.forced))
            metrics.form_forced_tokens.inc(sum(form.forced))
            metrics.form_refused_drafts.inc(form.forbidden)
        metrics.forward_seconds.labels(kind="verify").observe(judged.forward_ns * 1e-9)
        metrics.verify_batch_tokens.observe(judged.tokens)

    def taken(self, number: int) -> EndedPass:
        """Removes and returns a pass that has just ended."""
        return self._ran.pop(number)

    def report(self, report: Report, ran: EndedPass) -> PassReport:
        """The report of an ended pass."""
        judged, rounds = ran.judged, report.rounds
        self._note(judged)
        held = self._engine.held
        return PassReport(
            report,
            self._timing(ran),
            sum(each.committed_before for each in rounds) / len(rounds),
            judged.tokens,
            judged.prefill_tokens,
            logprobs=self._logprobs(ran, rounds),
            labels=_labels(judged, rounds),
            draws=tuple(judged.draws),
            pages_free=held.pages_total - held.pages_held,
        )

    def _timing(self, ran: EndedPass) -> Timing:
        rows = ran.running.rows
        answers: list[AnsweredOrder] = [row.answer for row in rows if row.answer is not None]
        forward_s = ran.judged.forward_ns * 1e-9
        whose = [row.sequence for row in rows]
        round_s = self._spans.ended(ran.running.cohort, whose, ran.ended, forward_s)
        sent = min((each.sent for each in answers), default=0.0)
        waited = max((each.came for each in answers), default=0.0) - sent
        draft_s = max((each.draft_s for each in answers), default=0.0)
        return Timing(forward_s, round_s, draft_s, waited)

    def _logprobs(
        self, ran: EndedPass, rounds: Sequence[RoundReport]
    ) -> Sequence[Sequence[ScoredToken]]:
        rows = zip(ran.running.rows, ran.judged.outcomes, strict=True)
        drawn = {row.sequence: one for row, one in rows if isinstance(one, Verdict)}
        told = [drawn[each.sequence].logprobs[: len(each.tokens)] for each in rounds]
        return told if any(told) else ()


def _labels(judged: VerdictBatch, rounds: Sequence[RoundReport]) -> npt.NDArray[np.float32] | None:
    """Labels [verified slots, 2] of all rounds; NaN where only outcomes are known."""
    if not judged.labels:
        return None
    parts = []
    for each in rounds:
        known = judged.labels.get(each.sequence)
        if known is None or len(known) != each.verified:
            known = np.full((each.verified, 2), np.nan, np.float32)
        parts.append(known)
    return np.concatenate(parts)
