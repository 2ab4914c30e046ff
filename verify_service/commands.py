"""Verify messages to engine nouns, and refusals back. A malformed field refuses its own command, nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable

from dspark.errors import PeerError
from dspark.runtime.channel import MAX_MESSAGE
from dspark.runtime.wire_limits import KIB, MAX_FORM, MIB, Bounds
from dspark.types import Cursor, Law, Refusal, RefusalReason
from dspark.wire import codec, cohorts
from dspark.wire.v1 import types_pb2, verify_pb2
from verify_service.feature_push import Sink
from verify_service.sequences import VerifyItem, invalid

MAX_ENDPOINT = 256
MAX_VERSION = 256
MAX_SALT = 512
MOST_SLOTS = 64  # of a block
MOST_SOURCES = 1024  # parts of a cohort: columns and drafters
MAX_ORDERS = 1 << 16  # of one message on a control stream
# A name or an address and a port: nothing that gRPC would resolve in another way, such as files or other schemes.
_ENDPOINT = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")


def bounds(context_length: int) -> Bounds:
    """Of commands to a verifier of so many tokens of context. A value of a column takes five bytes at most."""
    column, anything = 5 * cohorts.MAX_ROWS, MAX_MESSAGE
    law, sink, cursor = ("law", 64 * KIB), ("sink", KIB), ("cursor", KIB)
    prefill = {1: cursor, 2: ("token_ids", 5 * context_length), 3: law, 5: sink, 7: ("cache_salt", 4 * MAX_SALT)}
    cohort = {
        1: ("cursors", 8 * column),
        2: ("anchors", column),
        3: ("lengths", column),
        4: ("draft_ids", MOST_SLOTS * column),
        5: ("q_entries", column),
        6: ("q_ids", anything),
        7: ("q_probs", anything),
        8: ("sources", KIB),
        9: ("source", column),
    }
    return Bounds(
        {5: ("resend", KIB), 6: ("release", MIB)}, inner={3: Bounds(prefill), 4: Bounds(cohort, most=MOST_SOURCES)}
    )


def control_bounds(context_length: int) -> Bounds:
    """Of messages on a control stream to a verifier of so many tokens of context."""
    column = 5 * cohorts.MAX_ROWS
    admission = {
        3: ("token_ids", 5 * context_length),
        4: ("law", 64 * KIB + MAX_FORM),
        6: ("stop_ids", column),
        9: ("cache_salt", 4 * MAX_SALT),
    }
    plan = {
        2: ("plan.terms", KIB),
        6: ("plan.sequence", 2 * column),
        7: ("plan.drafter", column),
        8: ("plan.paused", column),
        9: ("plan.own_terms", column),
        10: ("plan.other_terms", KIB),
    }
    columns = {1: ("sequence", 2 * column), 2: ("epoch", column), 3: ("through_round", column)}
    order = Bounds(
        {2: ("drafter", 2 * KIB)},
        inner={
            1: Bounds(admission),
            3: Bounds(plan, most=cohorts.MAX_ROWS),
            4: Bounds(columns),
            5: Bounds({**columns, 3: ("drop", column)}),
            6: Bounds(columns),
        },
    )
    return Bounds({}, most=MAX_ORDERS, inner={2: order})


def read_cohort(message: verify_pb2.VerifyCohort) -> tuple[list[VerifyItem], list[Sink | None]]:
    """The sequences of a cohort, and where the rows of each go. Raises PeerError naming the column that does not fit.

    An address that cannot be one is None; whether a value makes sense is for the engine to say, sequence by sequence.
    """
    cursors, lengths = cohorts.read_cursors(message.cursors), message.lengths[:]
    anchors, source = message.anchors[:], message.source[:]
    cohorts.fit(len(cursors), anchors=anchors, lengths=lengths, source=source)
    ids, ends = tuple(message.draft_ids[:]), cohorts.bounds(lengths)
    cohorts.fit(ends[-1], draft_ids=ids)
    qs = cohorts.read_q(message.q_entries[:], message.q_ids, message.q_probs, lengths)
    if source and max(source) > len(message.sources):
        raise PeerError(f"source: {max(source)} of {len(message.sources)} sources")
    wants = [False, *(each.HasField("sink") for each in message.sources)]
    known = [None, *(read_sink(each.sink) for each in message.sources)]
    versions = ["", *(each.drafter_version for each in message.sources)]
    if max(map(len, versions)) > MAX_VERSION:
        raise PeerError(f"sources.drafter_version: more than {MAX_VERSION} characters")
    drafts = cohorts.parts(ids, ends)
    wanting, drafters = [wants[each] for each in source], [versions[each] for each in source]
    items = list(map(VerifyItem, cursors, anchors, drafts, qs, wanting, drafters))
    return items, [known[each] for each in source]


def read_law(message: types_pb2.Law) -> Law | Refusal:
    """The law of a sequence."""
    try:
        return codec.read_law(message)
    except PeerError as error:
        return invalid(str(error))


def read_sink(message: types_pb2.FeatureSink) -> Sink | None:
    """Where rows go; None when the field was left out or cannot be an address."""
    endpoint = message.endpoint
    if len(endpoint) > MAX_ENDPOINT or not _ENDPOINT.fullmatch(endpoint) or int(endpoint.rpartition(":")[2]) > 65535:
        return None
    return Sink(endpoint, message.incarnation)


def refuse_all(command: verify_pb2.VerifyCommand, refusal: Refusal) -> verify_pb2.VerifyEvent:
    """The event that refuses everything a command asked for."""
    written = codec.write_refusal(refusal)
    builders: dict[str, Callable[[], verify_pb2.VerifyEvent]] = {
        "prefill": lambda: verify_pb2.VerifyEvent(
            prefilled=verify_pb2.Prefilled(cursor=command.prefill.cursor, refusal=written)
        ),
        "verify": lambda: verify_pb2.VerifyEvent(verdicts=verify_pb2.Verdicts(refusal=written)),
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
