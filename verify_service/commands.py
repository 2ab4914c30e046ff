"""Verify messages to engine nouns and outcomes back. A malformed field refuses its own sequence, nothing else."""

from __future__ import annotations

from collections.abc import Callable

from dspark.errors import PeerError
from dspark.types import Cursor, Law, Refusal, RefusalReason, Verdict
from dspark.wire import codec
from dspark.wire.v1 import types_pb2, verify_pb2
from verify_service.feature_push import Sink
from verify_service.sequences import VerifyItem, invalid

MAX_ENDPOINT = 256


def read_item(message: verify_pb2.VerifyItem) -> VerifyItem | Refusal:
    """One sequence of a cohort."""
    ids = tuple(message.draft_ids)
    try:
        q = codec.read_q(message.q_entries if ids else 0, message.q_ids, message.q_probs, len(ids))
    except PeerError as error:
        return invalid(str(error))
    return VerifyItem(codec.read_cursor(message.cursor), message.anchor, ids, q, message.HasField("sink"))


def read_law(message: types_pb2.Law) -> Law | Refusal:
    """The law of a sequence."""
    try:
        return codec.read_law(message)
    except PeerError as error:
        return invalid(str(error))


def read_sink(message: types_pb2.FeatureSink) -> Sink | None:
    """Where rows go; None when the field was left out or cannot be an address."""
    endpoint = message.endpoint
    if not endpoint or len(endpoint) > MAX_ENDPOINT or not endpoint.rpartition(":")[2].isdigit():
        return None
    return Sink(endpoint, message.incarnation)


def write_outcome(message: verify_pb2.VerifyItem, outcome: Verdict | Refusal) -> verify_pb2.Verdict:
    """What became of one item."""
    if isinstance(outcome, Verdict):
        return codec.write_verdict(outcome)
    return verify_pb2.Verdict(cursor=message.cursor, refusal=codec.write_refusal(outcome))


def refuse_all(command: verify_pb2.VerifyCommand, refusal: Refusal) -> verify_pb2.VerifyEvent:
    """The event that refuses everything a command asked for."""
    written = codec.write_refusal(refusal)
    builders: dict[str, Callable[[], verify_pb2.VerifyEvent]] = {
        "prefill": lambda: verify_pb2.VerifyEvent(
            prefilled=verify_pb2.Prefilled(cursor=command.prefill.cursor, refusal=written)
        ),
        "verify": lambda: verify_pb2.VerifyEvent(
            verdicts=verify_pb2.Verdicts(
                items=[verify_pb2.Verdict(cursor=item.cursor, refusal=written) for item in command.verify.items]
            )
        ),
        "resend": lambda: verify_pb2.VerifyEvent(
            resent=verify_pb2.Resent(cursor=command.resend.cursor, refusal=written)
        ),
        "release": lambda: verify_pb2.VerifyEvent(released=verify_pb2.VerifyReleased()),
    }
    kind = command.WhichOneof("command")
    return builders[kind]() if kind else verify_pb2.VerifyEvent()


def wrong_incarnation(asked: int) -> Refusal:
    return Refusal(RefusalReason.WRONG_INCARNATION, f"the command is for process {asked}")


def cursor_of(message: types_pb2.Cursor) -> Cursor:
    return codec.read_cursor(message)
