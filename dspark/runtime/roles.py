"""The roles that may call each method of every service, one line each. An unlisted method is closed
to all.

A test compares this table with the protocol's own descriptors, so that a new method is closed until
its roles are decided.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

PACKAGE = "dspark.wire.v1"


class Role(enum.StrEnum):
    """The role in which a caller is admitted."""

    CLIENT = "client"  # asks for answers
    WORKER = "worker"  # a process of the cell that calls another one
    OPERATOR = "operator"  # runs the cell; may do what clients may
    MONITOR = "monitor"  # reads metrics, and nothing else


Roles = frozenset[Role]
_CLIENTS: Roles = frozenset({Role.CLIENT, Role.OPERATOR})
_WORKERS: Roles = frozenset({Role.WORKER})
_OPERATORS: Roles = frozenset({Role.OPERATOR})

METRICS: Roles = frozenset({Role.MONITOR, Role.OPERATOR})  # GET /metrics

# Health may be checked without credentials: load balancers and orchestrators do.
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
    # The protocol's descriptions, for tools: no secret, but not for strangers either.
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _CLIENTS | _WORKERS,
}


def allowed(method: str) -> Roles | None:
    """Roles that may call a full method name; None when it is free, an empty set when it is
    closed."""
    if method.split("/")[1] == FREE_SERVICE:
        return None
    return METHODS.get(method, frozenset())
