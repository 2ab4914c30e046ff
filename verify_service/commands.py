"""Verify messages to engine nouns, and refusals back. A malformed field refuses its own command, nothing else."""

from __future__ import annotations

import re

from dspark.runtime.wire_limits import KIB, MAX_FORM, Bounds
from dspark.wire import cohorts
from dspark.wire.control_down import MAX_SALT
from dspark.wire.v1 import types_pb2
from verify_service.feature_push import Sink

MAX_ENDPOINT = 256
MAX_ORDERS = 1 << 16  # of one message on a control stream
# A name or an address and a port: nothing that gRPC would resolve in another way, such as files or other schemes.
_ENDPOINT = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")


def control_bounds(context_length: int) -> Bounds:
    """Of messages on a control stream to a verifier of so many tokens of context."""
    column = 5 * cohorts.MAX_ROWS
    admission = {
        3: ("token_ids", 5 * context_length),
        4: ("sampling", 64 * KIB + MAX_FORM),
        6: ("stop_ids", column),
        9: ("cache_salt", 4 * MAX_SALT),
    }
    plan = {
        2: ("plan.terms", KIB),
        6: ("plan.sequence", 2 * column),
        7: ("plan.drafter", column),
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


def read_sink(message: types_pb2.FeatureSink) -> Sink | None:
    """Where rows go; None when the field was left out or cannot be an address."""
    endpoint = message.endpoint
    if len(endpoint) > MAX_ENDPOINT or not _ENDPOINT.fullmatch(endpoint) or int(endpoint.rpartition(":")[2]) > 65535:
        return None
    return Sink(endpoint, message.incarnation)
