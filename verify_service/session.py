"""What a coordinator asks of a verifier: prompts taken in, cohorts judged, rows sent again, sequences released.

Commands start in the order they came and answer when they are done; a long prefill gives way to rounds between its
chunks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from dspark.errors import InvalidRequest, Overloaded, PeerError, Unavailable
from dspark.runtime.worker import Worker
from dspark.runtime.worker_session import WorkerSession
from dspark.types import Refusal, RefusalReason, scores_problem
from dspark.wire import codec, cohorts
from dspark.wire.v1 import types_pb2, verify_pb2
from verify_service import commands
from verify_service.commands import MAX_SALT, cursor_of, read_cohort, read_law, read_sink, refuse_all
from verify_service.feature_push import FeaturePush, Sink
from verify_service.intake import Intake
from verify_service.interface import Engine, FeatureRun, Judged, Prefill
from verify_service.sequences import VerifyItem, invalid

log = structlog.get_logger("dspark.verify")

TURNS_TO_SEND = 2  # of the event loop, from an event to its bytes: taken from its queue, serialised, handed over


class VerifySession(WorkerSession[Engine]):
    """Commands of one stream."""

    event = verify_pb2.VerifyEvent

    def __init__(self, worker: Worker[Engine], push: FeaturePush, intake: Intake) -> None:
        super().__init__(worker)
        self._push, self._intake = push, intake

    async def _carry_out(
        self, kind: str, command: verify_pb2.VerifyCommand, too_large: InvalidRequest | None, wrong: bool
    ) -> verify_pb2.VerifyEvent:
        refused = self._worker.refused
        if wrong:
            refused(RefusalReason.WRONG_INCARNATION)
            return refuse_all(command, commands.wrong_incarnation(command.incarnation))
        if too_large is not None:
            return refuse_all(command, refused(RefusalReason.INVALID, str(too_large)))
        try:
            if kind == "verify":
                return verify_pb2.VerifyEvent(verdicts=await self._verify(command.verify))
            if kind == "prefill":
                return verify_pb2.VerifyEvent(prefilled=await self._prefill(command.prefill))
            if kind == "resend":
                return verify_pb2.VerifyEvent(resent=await self._resend(command.resend))
            return verify_pb2.VerifyEvent(released=await self._release(command.release))
        except (Overloaded, Unavailable) as error:
            return refuse_all(command, refused(RefusalReason.NO_PAGES, str(error)))
        except Exception as error:
            log.error("command.failed", kind=kind, exc_info=error)
            return refuse_all(command, refused(RefusalReason.INTERNAL, "a bug; see the verifier's log"))

    # -- the four commands ------------------------------------------------------------------

    async def _verify(self, cohort: verify_pb2.VerifyCohort) -> verify_pb2.Verdicts:
        try:
            items, sinks = read_cohort(cohort)
        except PeerError as error:
            return verify_pb2.Verdicts(
                refusal=codec.write_refusal(self._worker.refused(RefusalReason.INVALID, str(error)))
            )
        self._leases.mention(cohort.cursors.sequence)
        self._intake.round_begins()
        try:
            judged = await self._device.run(self._engine.judge_cohort, items, urgent=True)
        finally:
            self._intake.round_ends()
        self._after_event(partial(self._send_on, judged, items, sinks))
        return cohorts.write_verdicts(
            cohort.cursors,
            judged.outcomes,
            forward_ns=judged.forward_ns,
            tokens=judged.tokens,
            prefill_tokens=judged.prefill_tokens,
            labels=judged.labels,
            draws=judged.draws,
        )

    def _after_event(self, job: Callable[[], None]) -> None:
        """Runs it once the event has left: the coordinator already works on it, and nobody waits here."""
        loop = asyncio.get_running_loop()

        def later(turns: int) -> None:
            if turns:
                loop.call_soon(later, turns - 1)
            else:
                job()

        later(TURNS_TO_SEND)

    def _send_on(self, judged: Judged, items: Sequence[VerifyItem], sinks: Sequence[Sink | None]) -> None:
        """Rows to their drafters, progress to those who wait for it, counts to the metrics."""
        travelling: dict[Sink, list[FeatureRun]] = {}
        for item, features, sink in zip(items, judged.features, sinks, strict=True):
            if features is None or not item.wants_rows:
                continue
            if sink is None:
                self._metrics.dropped.labels(kind="feature_rows", reason="bad_sink").inc(len(features.token_ids))
            else:
                travelling.setdefault(sink, []).append(features)
        for sink, runs in travelling.items():
            self._hand_over(sink, runs, bulk=False)
        self._intake.collect()
        for outcome in judged.outcomes:
            if isinstance(outcome, Refusal):
                self._worker.refused(outcome.reason)
        self._metrics.replayed_verdicts.inc(judged.replayed)
        self._metrics.coupled_near_ties.inc(judged.near_ties)
        if judged.tokens:
            self._metrics.forward_seconds.labels(kind="verify").observe(judged.forward_ns * 1e-9)
            self._metrics.verify_batch_tokens.observe(judged.tokens)

    async def _prefill(self, command: verify_pb2.Prefill) -> verify_pb2.Prefilled:
        cursor = cursor_of(command.cursor)
        law = read_law(command.law)
        if self._worker.draining.is_set():
            law = Refusal(RefusalReason.NO_PAGES, "the verifier is draining")
        if len(command.cache_salt) > MAX_SALT:
            law = invalid(f"cache_salt: {len(command.cache_salt)} characters, at most {MAX_SALT} are taken")
        scores = command.prompt_logprobs if command.HasField("prompt_logprobs") else None
        if scores is not None and (wrong := scores_problem(len(command.token_ids), scores)) is not None:
            law = invalid(f"prompt_logprobs: {wrong}")
        if isinstance(law, Refusal):
            return self._not_taken(command, law)
        ids = list(command.token_ids)
        wants_rows = command.HasField("sink")

        def open_it() -> tuple[Refusal | None, int, FeatureRun | None]:
            refusal = self._engine.open(
                cursor,
                law,
                command.reserve_tokens,
                command.keep_features,
                owner=self._owner,
                token_ids=ids,
                salt=command.cache_salt,
                scores=scores,
            )
            if refusal is not None:
                return refusal, 0, None
            return None, *self._engine.spared(cursor.sequence, cursor.epoch, rows=wants_rows)

        def take_rows(rows: FeatureRun) -> None:
            if wants_rows:
                self._send(command.sink, [rows], bulk=True)

        began = time.perf_counter_ns()
        refusal, spared, rows = await self._device.run(open_it, urgent=True)
        if refusal is not None:
            return self._not_taken(command, refusal)
        self._leases.open(cursor.sequence, cursor.epoch, at_work=True)
        self._worker.note_load()
        if rows is not None:  # kept from before: the drafter gets them as if they had just been computed
            take_rows(rows)
        problem = await self._intake.run(Prefill(cursor.sequence, cursor.epoch, ids, wants_rows), take_rows)
        if problem is not None:
            await self._device.run_surely(self._engine.release, cursor.sequence, cursor.epoch)
            return self._not_taken(command, problem)
        self._metrics.prefix_cache_hits.inc(spared)
        self._metrics.prefix_cache_queries.inc(len(ids))
        spent_ns = time.perf_counter_ns() - began
        anchor = await self._device.run(
            lambda: self._engine.first_token(cursor.sequence, epoch=cursor.epoch), urgent=True
        )
        if isinstance(anchor, Refusal):
            await self._device.run_surely(self._engine.release, cursor.sequence, cursor.epoch)
            return self._not_taken(command, anchor)
        self._leases.open(cursor.sequence, cursor.epoch)
        told = self._engine.anchor_logprobs(cursor.sequence) if law.logprobs is not None else ()
        scored = self._engine.prompt_logprobs(cursor.sequence) if scores is not None else None
        log.info("sequence.prefilled", sequence=cursor.sequence, epoch=cursor.epoch, tokens=len(ids), spared=spared)
        return verify_pb2.Prefilled(
            cursor=command.cursor,
            anchor=anchor,
            features_through=len(ids) if self._engine.feature_width else 0,
            forward_ns=spent_ns,
            cached_tokens=spared,
            logprobs=next(iter(codec.write_logprobs(told)), None),
            prompt_logprobs=codec.write_prompt_logprobs(scored) if scored is not None else None,
        )

    async def _resend(self, command: verify_pb2.Resend) -> verify_pb2.Resent:
        cursor = cursor_of(command.cursor)
        self._leases.mention((cursor.sequence,))
        sink = read_sink(command.sink)
        made: FeatureRun | Refusal = (
            invalid("sink: not an address")
            if sink is None
            else await self._device.run(self._engine.features, cursor, command.from_position, urgent=True)
        )
        if isinstance(made, Refusal) or sink is None:
            assert isinstance(made, Refusal)
            self._worker.refused(made.reason)
            return verify_pb2.Resent(cursor=command.cursor, refusal=codec.write_refusal(made))
        rows = self._push.push(sink, [made], bulk=True)
        log.info("sequence.resent", sequence=cursor.sequence, rows=rows, start=command.from_position)
        return verify_pb2.Resent(cursor=command.cursor, rows=rows)

    async def _release(self, command: verify_pb2.VerifyRelease) -> verify_pb2.VerifyReleased:
        named = [(ref.sequence, ref.epoch) for ref in command.sequences[: cohorts.MAX_ROWS]]
        return verify_pb2.VerifyReleased(sequences=await self._free_named(named))

    # -- small things -----------------------------------------------------------------------

    def _send(self, message: types_pb2.FeatureSink, features: list[FeatureRun], *, bulk: bool) -> None:
        sink = read_sink(message)
        if sink is None:
            rows = sum(len(run.token_ids) for run in features)
            self._metrics.dropped.labels(kind="feature_rows", reason="bad_sink").inc(rows)
        else:
            self._hand_over(sink, features, bulk=bulk)

    def _hand_over(self, sink: Sink, features: Sequence[FeatureRun], *, bulk: bool) -> None:
        """Rows to their drafter. A failure is a bug and costs these rows, which the coordinator will miss and order
        again, but neither other rows nor a prompt that waits for its news."""
        try:
            self._push.push(sink, features, bulk=bulk)
        except Exception as error:
            log.error("rows.failed", sink=sink.endpoint, exc_info=error)
            rows = sum(len(run.token_ids) for run in features)
            self._metrics.dropped.labels(kind="feature_rows", reason="failed").inc(rows)

    def _not_taken(self, command: verify_pb2.Prefill, refusal: Refusal) -> verify_pb2.Prefilled:
        self._worker.refused(refusal.reason)
        return verify_pb2.Prefilled(cursor=command.cursor, refusal=codec.write_refusal(refusal))
