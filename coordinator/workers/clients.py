"""The two ports over gRPC: nouns to messages, tags and back. Decides nothing.

A malformed block is an empty block for its sequence and harms no other, blocks whose columns do not fit each other are
all empty, and an answer to something else than was asked ends the session.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import chain
from typing import Any

import grpc
import structlog

from coordinator.lanes.ports import (
    Declined,
    Drafted,
    DrafterFacts,
    DraftOrder,
    Judged,
    Prefilled,
    PrefillOrder,
    Sink,
    VerifierFacts,
    VerifyOrder,
)
from coordinator.scheduling.cost_curve import CostCurve
from dspark.errors import PeerError
from dspark.runtime.channel import auth_metadata
from dspark.runtime.session import Session
from dspark.runtime.telemetry import Metrics
from dspark.types import Block, Cursor, EmptyReason, Law, RefusalReason, Rule, Verdict
from dspark.wire import codec, cohorts
from dspark.wire.v1 import draft_pb2, draft_pb2_grpc, types_pb2, verify_pb2, verify_pb2_grpc

log = structlog.get_logger("dspark.clients")

MALFORMED_COHORTS = 3  # in a row, after which a drafter is let go


class DrafterClient:
    """One drafter process."""

    def __init__(
        self,
        facts: DrafterFacts,
        channel: grpc.aio.Channel,
        token: str | None,
        metrics: Metrics,
        on_lost: Callable[[str], None],
        on_draining: Callable[[float], None] = lambda finish_within_s: None,
    ) -> None:
        self.facts = facts
        self._metrics = metrics
        self._malformed = 0  # cohorts in a row without one good block
        stub = draft_pb2_grpc.DraftStub(channel)  # type: ignore[no-untyped-call]

        def stream(commands: AsyncIterator[draft_pb2.DraftCommand]) -> Any:
            return stub.Session(commands, metadata=auth_metadata(token))

        self.session = Session(
            stream,
            name=facts.name,
            incarnation=facts.incarnation,
            metrics=metrics,
            on_lost=on_lost,
            on_news=lambda event: _news(event, on_draining),
        )

    def open(self, cursor: Cursor, reserve_tokens: int, law: Law) -> Future[Declined | None]:
        message = draft_pb2.Open(
            cursor=codec.write_cursor(cursor), reserve_tokens=reserve_tokens, law=codec.write_law(law)
        )

        def read(event: draft_pb2.DraftEvent) -> Declined | None:
            return _declined(cursor, _part(event, "opened"))

        return self.session.ask(lambda tag, inc: draft_pb2.DraftCommand(tag=tag, incarnation=inc, open=message), read)

    def draft(self, orders: Sequence[DraftOrder], wait_us: int) -> Future[Drafted]:
        cursors = [order.cursor for order in orders]
        message = draft_pb2.DraftCohort(
            cursors=cohorts.write_cursors(cursors),
            anchors=[order.anchor for order in orders],
            features_through=[cursor.committed_len - 1 for cursor in cursors],
            max_slots=[order.max_slots for order in orders],
            wait_us=wait_us,
        )

        def read(event: draft_pb2.DraftEvent) -> Drafted:
            blocks: draft_pb2.Blocks = _part(event, "blocks")
            if len(blocks.cursors.sequence) != len(orders):
                raise PeerError(f"blocks: {len(blocks.cursors.sequence)} for {len(orders)} sequences")
            return Drafted(tuple(self._read(blocks, orders)), blocks.forward_ns / 1e9)

        return self.session.ask(lambda tag, inc: draft_pb2.DraftCommand(tag=tag, incarnation=inc, draft=message), read)

    def release(self, cursor: Cursor) -> None:
        message = draft_pb2.DraftRelease(sequences=[_ref(cursor)])
        self.session.ask(lambda tag, inc: draft_pb2.DraftCommand(tag=tag, incarnation=inc, release=message), _ignore)

    def close(self, why: str) -> None:
        self.session.close(why)

    def _read(self, message: draft_pb2.Blocks, orders: Sequence[DraftOrder]) -> list[Block]:
        malformed = self._metrics.dropped.labels(kind="block", reason="malformed")
        try:
            blocks = cohorts.read_blocks(message, self.facts.vocab_size)
        except PeerError as error:
            log.warning("blocks.malformed", drafter=self.facts.name, field=str(error))
            malformed.inc(len(orders))
            self._judge(bad=True)
            return [_malformed(order) for order in orders]
        for row, (block, order) in enumerate(zip(blocks, orders, strict=True)):
            slots = len(block.token_ids)
            # A block needs the distributions it was drawn from; a coupled one has none.
            if slots > order.max_slots or (slots and bool(block.q.entries) is (order.law.rule is Rule.COUPLED)):
                blocks[row] = _malformed(order)
        lost = [row for row, slots in enumerate(message.lengths) if slots and not blocks[row].token_ids]
        if lost:
            malformed.inc(len(lost))
        self._judge(bad=bool(lost) and len(lost) == len(blocks))
        return blocks

    def _judge(self, *, bad: bool) -> None:
        """A drafter that sends nothing but garbage is let go; the breaker decides when it is tried again."""
        self._malformed = self._malformed + 1 if bad else 0
        if self._malformed >= MALFORMED_COHORTS:
            self.close(f"{self._malformed} cohorts in a row were malformed")


class VerifierClient:
    """One verifier process."""

    def __init__(
        self,
        facts: VerifierFacts,
        channel: grpc.aio.Channel,
        token: str | None,
        metrics: Metrics,
        on_lost: Callable[[str], None],
        on_draining: Callable[[float], None] = lambda finish_within_s: None,
    ) -> None:
        self.facts = facts
        stub = verify_pb2_grpc.VerifyStub(channel)  # type: ignore[no-untyped-call]

        def stream(commands: AsyncIterator[verify_pb2.VerifyCommand]) -> Any:
            return stub.Session(commands, metadata=auth_metadata(token))

        self.session = Session(
            stream,
            name=facts.name,
            incarnation=facts.incarnation,
            metrics=metrics,
            on_lost=on_lost,
            on_news=lambda event: _news(event, on_draining),
        )

    def prefill(self, order: PrefillOrder) -> Future[Prefilled | Declined]:
        message = verify_pb2.Prefill(
            cursor=codec.write_cursor(order.cursor),
            token_ids=order.token_ids,
            law=codec.write_law(order.law),
            reserve_tokens=order.reserve_tokens,
            sink=_sink(order.sink),
            keep_features=order.keep_features,
            cache_salt=order.cache_salt,
            prompt_logprobs=order.prompt_logprobs,
        )

        def read(event: verify_pb2.VerifyEvent) -> Prefilled | Declined:
            prefilled: verify_pb2.Prefilled = _part(event, "prefilled")
            declined = _declined(order.cursor, prefilled)
            told = codec.read_logprobs([prefilled.logprobs]) if prefilled.HasField("logprobs") else ()
            if declined is not None:
                return declined
            spared = min(prefilled.cached_tokens, order.cursor.committed_len)
            scored = None
            if order.prompt_logprobs is not None and prefilled.HasField("prompt_logprobs"):
                top = min(order.prompt_logprobs, self.facts.vocab_size)
                scored = codec.read_prompt_logprobs(prefilled.prompt_logprobs, len(order.token_ids), top)
            return Prefilled(order.cursor, prefilled.anchor, prefilled.forward_ns / 1e9, told, spared, scored)

        return self._ask(lambda tag, inc: verify_pb2.VerifyCommand(tag=tag, incarnation=inc, prefill=message), read)

    def verify(self, orders: Sequence[VerifyOrder]) -> Future[Judged]:
        cursors = [order.cursor for order in orders]
        fields: Any = _write_cohort(orders, cursors)

        def read(event: verify_pb2.VerifyEvent) -> Judged:
            verdicts: verify_pb2.Verdicts = _part(event, "verdicts")
            outcomes = tuple(
                outcome if isinstance(outcome, Verdict) else Declined(cursor, outcome.reason, outcome.message)
                for cursor, outcome in zip(cursors, cohorts.read_verdicts(verdicts, cursors), strict=True)
            )
            ridden = verdicts.prefill_tokens
            labels, draws = cohorts.read_labels(verdicts), cohorts.read_draws(verdicts.draws)
            return Judged(outcomes, verdicts.forward_ns / 1e9, verdicts.tokens + ridden, ridden, labels, draws)

        return self._ask(lambda tag, inc: verify_pb2.VerifyCommand(tag=tag, incarnation=inc, verify=fields), read)

    def resend(self, cursor: Cursor, sink: Sink, from_position: int) -> Future[Declined | None]:
        message = verify_pb2.Resend(cursor=codec.write_cursor(cursor), sink=_sink(sink), from_position=from_position)

        wanted = cursor.committed_len - 1 - from_position

        def read(event: verify_pb2.VerifyEvent) -> Declined | None:
            resent = _part(event, "resent")
            if not resent.HasField("refusal") and resent.rows < wanted:
                return Declined(cursor, RefusalReason.INTERNAL, f"{resent.rows} of {wanted} rows were sent")
            return _declined(cursor, resent)

        return self._ask(lambda tag, inc: verify_pb2.VerifyCommand(tag=tag, incarnation=inc, resend=message), read)

    def release(self, cursor: Cursor) -> None:
        message = verify_pb2.VerifyRelease(sequences=[_ref(cursor)])
        self._ask(lambda tag, inc: verify_pb2.VerifyCommand(tag=tag, incarnation=inc, release=message), _ignore)

    def close(self, why: str) -> None:
        self.session.close(why)

    def _ask(self, command: Callable[[int, int], verify_pb2.VerifyCommand], read: Callable[[Any], Any]) -> Future[Any]:
        return self.session.ask(command, read)


def verifier_facts(name: str, endpoint: str, said: verify_pb2.VerifierDescription) -> VerifierFacts:
    return VerifierFacts(
        name=name,
        endpoint=endpoint,
        incarnation=said.incarnation,
        pid=said.pid,
        model=said.model,
        fingerprint=said.fingerprint,
        vocab_size=said.vocab_size,
        context_length=said.context_length,
        hidden_size=said.hidden_size,
        projection=said.projection,
        page_size=said.page_size,
        pages_total=said.load.pages_total if said.page_size else 0,
        attention_path=said.attention_path,
        stop_token_ids=tuple(said.stop_token_ids),
        cost=_cost(said.cost),
    )


def drafter_facts(name: str, endpoint: str, said: draft_pb2.DrafterDescription) -> DrafterFacts:
    return DrafterFacts(
        name=name,
        endpoint=endpoint,
        incarnation=said.incarnation,
        pid=said.pid,
        model=said.model,
        fingerprint=said.fingerprint,
        vocab_size=said.vocab_size,
        hidden_size=said.hidden_size,
        projection=said.projection,
        block_size=said.block_size,
        context_length=said.context_length,
        cost=_cost(said.cost),
    )


def _cost(message: types_pb2.CostCurve) -> CostCurve | None:
    grid = codec.read_cost(message)
    if grid is None:
        return None
    tokens, contexts, seconds = grid
    return CostCurve(
        tokens.tolist(),
        contexts.tolist(),
        seconds.ravel().tolist(),
        sequence_seconds=message.sequence_seconds,
        tokens_per_sequence=message.tokens_per_sequence,
        borrowed=message.borrowed,
    )


def _malformed(order: DraftOrder) -> Block:
    return Block(order.cursor, empty_reason=EmptyReason.INVALID)


def _write_cohort(orders: Sequence[VerifyOrder], cursors: Sequence[Cursor]) -> dict[str, Any]:
    """The fields of a verify_pb2.VerifyCohort: a message inside another is copied, q and all."""
    sources: dict[tuple[Sink | None, str], int] = {}
    source = [
        sources.setdefault((order.sink, order.drafter_version), len(sources) + 1)
        if order.sink is not None or order.drafter_version
        else 0
        for order in orders
    ]
    drafts = [order.draft_ids for order in orders]
    return dict(
        cursors=cohorts.write_cursors(cursors),
        anchors=[order.anchor for order in orders],
        lengths=[len(ids) for ids in drafts],
        draft_ids=chain.from_iterable(drafts),
        sources=[verify_pb2.Source(sink=_sink(sink), drafter_version=version) for sink, version in sources],
        source=source,
        **cohorts.write_q([order.q for order in orders]),
    )


def _declined(cursor: Cursor, message: Any) -> Declined | None:
    if not message.HasField("refusal"):
        return None
    refusal = codec.read_refusal(message.refusal)
    return Declined(cursor, refusal.reason, refusal.message)


def _sink(sink: Sink | None) -> types_pb2.FeatureSink | None:
    return None if sink is None else types_pb2.FeatureSink(endpoint=sink.endpoint, incarnation=sink.incarnation)


def _ref(cursor: Cursor) -> types_pb2.SequenceRef:
    return types_pb2.SequenceRef(sequence=cursor.sequence, epoch=cursor.epoch)


def _part(event: Any, name: str) -> Any:
    if event.WhichOneof("event") != name:
        raise PeerError(f"event: {event.WhichOneof('event')} in answer to a command that wants {name}")
    return getattr(event, name)


def _news(event: Any, on_draining: Callable[[float], None]) -> None:
    """An event that answers no command."""
    if event.WhichOneof("event") == "draining":
        on_draining(event.draining.finish_within_ms / 1000)


def _ignore(_: Any) -> None:
    """Nobody waits for this reply."""
