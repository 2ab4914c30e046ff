"""The client's exceptions. gRPC statuses become exceptions here and nowhere else; most classes are
those of `dspark.errors`.

DsparkError
|-- InvalidRequest    `field` names what is wrong; do not try again
|   `-- Unsupported   understood by the server, not built
|-- Overloaded        a bound was reached; wait `retry_after_s`
|-- Unavailable       no process serves this now; trying again is safe
|-- DeadlineExceeded  the request's time ran out
|-- Denied            the token is missing or wrong
|-- Cancelled         the call was ended by this side, or resumed elsewhere
`-- ServerError       a bug on the other side; the message holds its reference
"""

from __future__ import annotations

from typing import Any

import grpc

from dspark.errors import (
    Denied,
    DsparkError,
    Expired,
    InvalidRequest,
    Overloaded,
    Unavailable,
    Unsupported,
)

DeadlineExceeded = Expired

RETRY_AFTER_S = 1.0  # for a server that gives no hint
# gRPC's details for calls that this side ended
ENDED_HERE = ("Locally cancelled by application!", "Channel closed!")


class Cancelled(DsparkError):
    """The call was ended by this side, or its request was resumed elsewhere."""


class ServerError(DsparkError):
    """The server failed unexpectedly."""


def read_error(error: Any, endpoint: str) -> DsparkError:
    """The exception for a failed call (a `grpc.RpcError`, blocking or asyncio)."""
    code, details = error.code(), error.details() or ""
    trailing = {str(key): value for key, value in (error.trailing_metadata() or ())}
    if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED):
        field = trailing.get("bad-field")
        if field is None and code is grpc.StatusCode.UNIMPLEMENTED:
            return ServerError(
                f"{endpoint} does not speak this interface ({details}): ask a cell's coordinator"
            )
        kind = InvalidRequest if code is grpc.StatusCode.INVALID_ARGUMENT else Unsupported
        name = str(field or "request")
        return kind(name, details.removeprefix(f"{name}: "))
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        # gRPC's status for a message that is too large; not an overload
        return InvalidRequest("request", details.partition(": ")[2] or details)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        hint = str(trailing.get("retry-after-ms", ""))
        return Overloaded(details, int(hint) / 1000 if hint.isdigit() else RETRY_AFTER_S)
    if code is grpc.StatusCode.UNAVAILABLE:
        return Unavailable(f"{endpoint} cannot serve this now: {details}")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(f"the deadline passed before {endpoint} was done")
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return Denied(f"{endpoint} refused the credentials: {details}")
    if code is grpc.StatusCode.ABORTED:
        return Cancelled(details)
    if code is grpc.StatusCode.CANCELLED:
        if any(words in details for words in ENDED_HERE):
            return Cancelled("the call was cancelled")
        # a server that stops cancels the calls that it has not read yet
        return Unavailable(f"{endpoint} ended the call")
    return ServerError(f"{endpoint} failed: {details or code.name}")
