"""Client side of gRPC: channels with bounds, which notice dead peers quickly, and health checks."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import grpc

from dspark.errors import InvalidRequest
from dspark.runtime.identity import LONGEST_TOKEN
from dspark.runtime.tls import Tls

MAX_MESSAGE = 256 * 1024 * 1024
# bytes that a stream may send unasked, so that a cohort's q needs no further round trip
LOOKAHEAD = 4 * 1024 * 1024

# Silence after which a peer is pinged. Processes of a cell watch each other closely; a listener
# that strangers can reach accepts no ping more often than `server.LEAST_PUBLIC_PING_MS`.
CLIENT_WATCH_MS, FRONT_WATCH_MS, WORKER_WATCH_MS = 10_000, 2_000, 1_000
# time for a peer in a cell to answer; with WORKER_WATCH_MS a hung one is noticed within 3 s
ANSWER_MS = 1_800
CLIENT_ANSWER_MS = 3_000

_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.http2.lookahead_bytes", LOOKAHEAD),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Channels of one process must not share a broken connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]
READY = "dspark.ready"  # health name of every process: all its services serve
CALL_S = 2.0  # timeout of one health check
REPLY_BYTE = b"\x08"  # field 1, a number
STATES = ("unknown", "serving", "not_serving", "service_unknown")


def _opened(
    library: Any,
    endpoint: str,
    *,
    tls: Tls | None = None,
    service_config: dict[str, object] | None = None,
    watch_ms: int = CLIENT_WATCH_MS,
) -> Any:
    """A channel to `host:port`, plaintext without `tls`. library: `grpc` or `grpc.aio`, whose
    channels are made alike. watch_ms: silence after which the peer is pinged."""
    answer_ms = ANSWER_MS if watch_ms < CLIENT_WATCH_MS else CLIENT_ANSWER_MS
    # Keepalive alone notices a hung peer after 60 s; `ping_timeout_ms` is what shortens it.
    options: list[tuple[str, int | str]] = [
        *_OPTIONS,
        ("grpc.keepalive_time_ms", watch_ms),
        ("grpc.keepalive_timeout_ms", answer_ms),
        ("grpc.http2.ping_timeout_ms", answer_ms),
    ]
    if service_config is not None:
        options.append(("grpc.service_config", json.dumps(service_config)))
    if tls is None:
        return library.insecure_channel(endpoint, options=options)
    if tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return library.secure_channel(endpoint, tls.channel_credentials(), options=options)


open_channel = partial(_opened, grpc.aio)  # for asyncio: it belongs to the running event loop
sync_channel = partial(_opened, grpc)  # whose calls block


def auth_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """Call metadata that carries the shared secret; pass it on every call (`metadata=`). Raises
    InvalidRequest for a secret that no header may hold."""
    if token and not (token.isascii() and token.isprintable()):
        raise InvalidRequest("token", "has a line end, or another character that is not in tokens")
    if token and len(token) > LONGEST_TOKEN:
        raise InvalidRequest("token", f"{len(token)} characters, at most {LONGEST_TOKEN} are taken")
    return (("authorization", f"Bearer {token}"),) if token else ()


def health_of(channel: grpc.Channel, service: str, timeout_s: float = CALL_S) -> str:
    """The health of a service, one of `STATES`; raises grpc.RpcError. service: "" stands for the
    process.

    Messages are built by hand: they are a few bytes, and clients have no package for them.
    """
    name = service.encode()
    request = b"\x0a" + bytes([len(name)]) + name if name else b""
    reply: bytes = channel.unary_unary("/grpc.health.v1.Health/Check")(request, timeout=timeout_s)
    state = reply[1] if reply[:1] == REPLY_BYTE and len(reply) > 1 else 0
    return STATES[state] if state < len(STATES) else STATES[0]
