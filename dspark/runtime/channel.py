"""Client side of gRPC: channels with bounds and a quick eye for dead peers."""

from __future__ import annotations

import json

import grpc

from dspark.runtime.tls import Tls

MAX_MESSAGE = 256 * 1024 * 1024
LOOKAHEAD = 4 * 1024 * 1024  # bytes of a stream that may travel unasked: a cohort's q needs no round trip for its rest

# Keepalive alone notices a hung peer after 60 s; `ping_timeout_ms` is what shortens it.
_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.http2.lookahead_bytes", LOOKAHEAD),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Channels of one process must not share a broken connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]


def _options(service_config: dict[str, object] | None, tls: Tls | None) -> list[tuple[str, int | str]]:
    extra: list[tuple[str, int | str]] = []
    if tls is not None and tls.server_name:
        extra.append(("grpc.ssl_target_name_override", tls.server_name))
    if service_config is not None:
        extra.append(("grpc.service_config", json.dumps(service_config)))
    return [*_OPTIONS, *extra]


def open_channel(
    endpoint: str, *, tls: Tls | None = None, service_config: dict[str, object] | None = None
) -> grpc.aio.Channel:
    """An asyncio channel to `host:port`; belongs to the running event loop. Without `tls` it is plaintext."""
    options = _options(service_config, tls)
    if tls is None:
        return grpc.aio.insecure_channel(endpoint, options=options)
    return grpc.aio.secure_channel(endpoint, tls.channel_credentials(), options=options)


def sync_channel(
    endpoint: str, *, tls: Tls | None = None, service_config: dict[str, object] | None = None
) -> grpc.Channel:
    """A blocking channel to `host:port`. Without `tls` it is plaintext."""
    options = _options(service_config, tls)
    if tls is None:
        return grpc.insecure_channel(endpoint, options=options)
    return grpc.secure_channel(endpoint, tls.channel_credentials(), options=options)


def auth_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """Call metadata that carries the shared secret; pass it on every call (`metadata=`)."""
    return (("authorization", f"Bearer {token}"),) if token else ()
