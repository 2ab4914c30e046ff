"""Whether a process serves, by gRPC's own health protocol. Needs grpcio alone: its messages are a few bytes."""

from __future__ import annotations

import time
from collections.abc import Callable

import grpc

from dspark.errors import Unavailable
from dspark.runtime.channel import sync_channel
from dspark.runtime.tls import Tls

READY = "dspark.ready"  # health name of every process: all its services serve
CALL_S = 2.0  # of one question
POLL_S = 0.1
REPLY_BYTE = b"\x08"  # field 1, a number
STATES = ("unknown", "serving", "not_serving", "service_unknown")


def health_of(channel: grpc.Channel, service: str, timeout_s: float = CALL_S) -> str:
    """One of `STATES`; raises grpc.RpcError. service: "" asks whether the process lives."""
    name = service.encode()
    request = b"\x0a" + bytes([len(name)]) + name if name else b""
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=lambda message: message,
        response_deserializer=lambda message: message,
    )
    reply: bytes = check(request, timeout=timeout_s)
    state = reply[1] if reply[:1] == REPLY_BYTE and len(reply) > 1 else 0
    return STATES[state] if state < len(STATES) else STATES[0]


def await_serving(
    endpoint: Callable[[], str], *, service: str = READY, tls: Callable[[], Tls | None], longest_s: float
) -> str:
    """Returns "serving"; Unavailable says what it was when the time was over.

    endpoint, tls: of the process; asked again and again, as a cell may not be there yet (Unavailable).
    """
    deadline = time.monotonic() + longest_s
    while True:
        left = deadline - time.monotonic()
        try:
            at = endpoint()
            with sync_channel(at, tls=tls()) as channel:
                state = health_of(channel, service, min(CALL_S, max(left, POLL_S)))
            why = f"{at} is {state}"
        except Unavailable as error:
            state, why = "unknown", str(error)
        except grpc.RpcError as error:
            state, why = "unknown", f"{at}: {error.code().name.lower()}: {error.details()}"
        if state == "serving":
            return state
        if time.monotonic() >= deadline:
            raise Unavailable(f"not serving within {longest_s:g} s: {why}")
        time.sleep(min(POLL_S, max(deadline - time.monotonic(), 0.0)))
