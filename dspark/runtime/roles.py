"""Who may call what: every method of every service, one line each. What is not listed here nobody
may call.

A test holds this table against the protocol's own descriptors, so that a new method is closed until
it is decided.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

PACKAGE = "dspark.wire.v1"


class Role(enum.StrEnum):
    """What a caller is let in as."""

    CLIENT = "client"  # asks for answers
    WORKER = "worker"  # a process of the cell, on its way to another one
    OPERATOR = "operator"  # runs the cell; may do what clients may
    MONITOR = "monitor"  # reads metrics, and nothing else


Roles = frozenset[Role]
_CLIENTS: Roles = frozenset({Role.CLIENT, Role.OPERATOR})
_WORKERS: Roles = frozenset({Role.WORKER})
_OPERATORS: Roles = frozenset({Role.OPERATOR})

METRICS: Roles = frozenset({Role.MONITOR, Role.OPERATOR})  # GET /metrics

# Who is alive may be asked without showing anything: load balancers and orchestrators do.
FREE_SERVICE = "grpc.health.v1.Health"

METHODS: Mapping[str, Roles] = {
    f"/{PACKAGE}.Generation/Generate": _CLIENTS,
    f"/{PACKAGE}.Generation/Abort": _CLIENTS,
    f"/{PACKAGE}.Generation/GetModelInfo": _CLIENTS,
    f"/{PACKAGE}.Control/Announce": _OPERATORS,
    f"/{PACKAGE}.Control/GetStatus": _OPERATORS,
    f"/{PACKAGE}.Control/Explain": _OPERATORS,
    f"/{PACKAGE}.Control/GetEnded": _OPERATORS,
    f"/{PACKAGE}.Cell/Attach": _WORKERS,
    f"/{PACKAGE}.Verify/Describe": _WORKERS | _OPERATORS,
    f"/{PACKAGE}.Verify/Control": _WORKERS,
    f"/{PACKAGE}.Draft/Describe": _WORKERS | _OPERATORS,
    f"/{PACKAGE}.Draft/Watch": _WORKERS,
    f"/{PACKAGE}.Draft/Rounds": _WORKERS,
    f"/{PACKAGE}.Features/Push": _WORKERS,
    # The protocol's descriptions, for tools: no secret, but none of a stranger's business either.
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _CLIENTS | _WORKERS,
}


def allowed(method: str) -> Roles | None:
    """Roles that may call a full method name; None when it is free, an empty set when nobody
    may."""
    if method.split("/")[1] == FREE_SERVICE:
        return None
    return METHODS.get(method, frozenset())
