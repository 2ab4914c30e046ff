"""The two ports over gRPC: nouns to messages, tags and back. Decides nothing.

A malformed block is an empty block for its sequence and harms no other; a malformed reply ends the session.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc

from coordinator.cost_curve import CostCurve
from coordinator.ports import (
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
from coordinator.session import Session
from dspark.errors import PeerError
from dspark.runtime.channel import auth_metadata
from dspark.runtime.telemetry import Metrics
from dspark.types import Block, Cursor, EmptyReason, RefusalReason, Rule, Verdict
from dspark.wire import codec
from dspark.wire.v1 import draft_pb2, draft_pb2_grpc, types_pb2, verify_pb2, verify_pb2_grpc


class DrafterClient:
    """One drafter process."""

    def __init__(
        self,
        facts: DrafterFacts,
        channel: grpc.aio.Channel,
        token: str | None,
        metrics: Metrics,
        on_lost: Callable[[str], None],
    ) -> None:
        self.facts = facts
        self._metrics = metrics
        stub = draft_pb2_grpc.DraftStub(channel)  # type: ignore[no-untyped-call]

        def stream(commands: AsyncIterator[draft_pb2.DraftCommand]) -> Any:
            return stub.Session(commands, metadata=auth_metadata(token))

        self.session = Session(stream, name=facts.name, incarnation=facts.incarnation, metrics=metrics, on_lost=on_lost)

    def open(self, cursor: Cursor, reserve_tokens: int) -> Future[Declined | None]:
        message = draft_pb2.Open(cursor=codec.write_cursor(cursor), reserve_tokens=reserve_tokens)

        def read(event: draft_pb2.DraftEvent) -> Declined | None:
            return _declined(cursor, _part(event, "opened"))

        return self.session.ask(lambda tag, inc: draft_pb2.DraftCommand(tag=tag, incarnation=inc, open=message), read)

    def draft(self, orders: Sequence[DraftOrder], wait_us: int) -> Future[Drafted]:
        message = draft_pb2.DraftCohort(items=[_write_draft(order) for order in orders], wait_us=wait_us)

        def read(event: draft_pb2.DraftEvent) -> Drafted:
            blocks: draft_pb2.Blocks = _part(event, "blocks")
            if len(blocks.items) != len(orders):
                raise PeerError(f"blocks: {len(blocks.items)} for {len(orders)} items")
            read_blocks = tuple(self._read(item, order) for item, order in zip(blocks.items, orders, strict=True))
            return Drafted(read_blocks, blocks.forward_ns / 1e9)

        return self.session.ask(lambda tag, inc: draft_pb2.DraftCommand(tag=tag, incarnation=inc, draft=message), read)

    def release(self, cursor: Cursor) -> None:
        message = draft_pb2.DraftRelease(sequences=[_ref(cursor)])
        self.session.ask(lambda tag, inc: draft_pb2.DraftCommand(tag=tag, incarnation=inc, release=message), _ignore)

    def close(self, why: str) -> None:
        self.session.close(why)

    def _read(self, item: draft_pb2.Block, order: DraftOrder) -> Block:
        try:
            block = codec.read_block(item, self.facts.vocab_size)
            if len(block.token_ids) > order.max_slots:
                raise PeerError(f"token_ids: {len(block.token_ids)} slots, {order.max_slots} were wanted")
            if block.token_ids and bool(block.q.entries) is (order.law.rule is Rule.COUPLED):
                raise PeerError("q_entries: a block needs the distributions it was drawn from, a coupled one has none")
        except PeerError:
            self._metrics.dropped.labels(kind="block", reason="malformed").inc()
            return Block(order.cursor, empty_reason=EmptyReason.INVALID)
        return block


class VerifierClient:
    """One verifier process."""

    def __init__(
        self,
        facts: VerifierFacts,
        channel: grpc.aio.Channel,
        token: str | None,
        metrics: Metrics,
        on_lost: Callable[[str], None],
    ) -> None:
        self.facts = facts
        stub = verify_pb2_grpc.VerifyStub(channel)  # type: ignore[no-untyped-call]

        def stream(commands: AsyncIterator[verify_pb2.VerifyCommand]) -> Any:
            return stub.Session(commands, metadata=auth_metadata(token))

        self.session = Session(stream, name=facts.name, incarnation=facts.incarnation, metrics=metrics, on_lost=on_lost)

    def prefill(self, order: PrefillOrder) -> Future[Prefilled | Declined]:
        message = verify_pb2.Prefill(
            cursor=codec.write_cursor(order.cursor),
            token_ids=order.token_ids,
            law=codec.write_law(order.law),
            reserve_tokens=order.reserve_tokens,
            sink=_sink(order.sink),
            keep_features=order.keep_features,
            cache_salt=order.cache_salt,
        )

        def read(event: verify_pb2.VerifyEvent) -> Prefilled | Declined:
            prefilled: verify_pb2.Prefilled = _part(event, "prefilled")
            declined = _declined(order.cursor, prefilled)
            told = codec.read_logprobs([prefilled.logprobs]) if prefilled.HasField("logprobs") else ()
            if declined is not None:
                return declined
            spared = min(prefilled.cached_tokens, order.cursor.committed_len)
            return Prefilled(order.cursor, prefilled.anchor, prefilled.forward_ns / 1e9, told, spared)

        return self._ask(lambda tag, inc: verify_pb2.VerifyCommand(tag=tag, incarnation=inc, prefill=message), read)

    def verify(self, orders: Sequence[VerifyOrder]) -> Future[Judged]:
        message = verify_pb2.VerifyCohort(items=[_write_verify(order) for order in orders])

        def read(event: verify_pb2.VerifyEvent) -> Judged:
            verdicts: verify_pb2.Verdicts = _part(event, "verdicts")
            if len(verdicts.items) != len(orders):
                raise PeerError(f"verdicts: {len(verdicts.items)} for {len(orders)} items")
            read_verdicts = tuple(map(_read_verdict, verdicts.items))
            ridden = verdicts.prefill_tokens
            return Judged(read_verdicts, verdicts.forward_ns / 1e9, verdicts.tokens + ridden, ridden)

        return self._ask(lambda tag, inc: verify_pb2.VerifyCommand(tag=tag, incarnation=inc, verify=message), read)

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
    return CostCurve(tokens.tolist(), contexts.tolist(), seconds.ravel().tolist())


def _write_draft(order: DraftOrder) -> draft_pb2.DraftItem:
    return draft_pb2.DraftItem(
        cursor=codec.write_cursor(order.cursor),
        anchor=order.anchor,
        features_through=order.cursor.committed_len - 1,
        law=codec.write_law(order.law),
        max_slots=order.max_slots,
    )


def _write_verify(order: VerifyOrder) -> verify_pb2.VerifyItem:
    return verify_pb2.VerifyItem(
        cursor=codec.write_cursor(order.cursor),
        anchor=order.anchor,
        draft_ids=order.draft_ids,
        q_entries=order.q.entries,
        q_ids=order.q.ids,
        q_probs=order.q.probs,
        sink=_sink(order.sink),
        drafter_version=order.drafter_version,
    )


def _read_verdict(message: verify_pb2.Verdict) -> Verdict | Declined:
    return _declined(codec.read_cursor(message.cursor), message) or codec.read_verdict(message)


def _declined(cursor: Cursor, message: Any) -> Declined | None:
    if not message.HasField("refusal"):
        return None
    try:
        reason = RefusalReason(message.refusal.reason)
    except ValueError:
        reason = RefusalReason.INTERNAL
    return Declined(cursor, reason, message.refusal.message)


def _sink(sink: Sink | None) -> types_pb2.FeatureSink | None:
    return None if sink is None else types_pb2.FeatureSink(endpoint=sink.endpoint, incarnation=sink.incarnation)


def _ref(cursor: Cursor) -> types_pb2.SequenceRef:
    return types_pb2.SequenceRef(sequence=cursor.sequence, epoch=cursor.epoch)


def _part(event: Any, name: str) -> Any:
    if event.WhichOneof("event") != name:
        raise PeerError(f"event: {event.WhichOneof('event')} in answer to a command that wants {name}")
    return getattr(event, name)


def _ignore(_: Any) -> None:
    """Nobody waits for this reply."""
