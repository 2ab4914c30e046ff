"""The gRPC server every process runs: bounds, TLS, access, health, reflection, graceful stop.

The only place where an exception becomes a status.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import structlog
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from dspark.errors import (
    ConfigError,
    Denied,
    DsparkError,
    Expired,
    Forbidden,
    InvalidRequest,
    Overloaded,
    RequestCancelled,
    Unavailable,
    Unsupported,
)
from dspark.runtime import roles
from dspark.runtime.addresses import join_endpoint, split_endpoint
from dspark.runtime.channel import LOOKAHEAD, MAX_MESSAGE, READY
from dspark.runtime.security import Access, Caller, Security, current_caller, set_caller
from dspark.runtime.wire_limits import MAX_REQUEST, check_size

log = structlog.get_logger("dspark.server")

SERVING, NOT_SERVING = (
    health_pb2.HealthCheckResponse.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING,
)

# The first match counts, so subclasses stand before their bases.
_STATUS: list[tuple[type[DsparkError], grpc.StatusCode]] = [
    (Unsupported, grpc.StatusCode.UNIMPLEMENTED),
    (InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),
    (Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
    (Expired, grpc.StatusCode.DEADLINE_EXCEEDED),
    (Forbidden, grpc.StatusCode.PERMISSION_DENIED),
    (Denied, grpc.StatusCode.UNAUTHENTICATED),
    (RequestCancelled, grpc.StatusCode.ABORTED),
]

# Bytes of call metadata: peers are sent the first bound; above the second gRPC refuses a call
# itself.
METADATA_SOFT, METADATA_HARD = 8 * 1024, 16 * 1024
# Least time between two pings of one peer. Processes of a cell watch each other; strangers reach
# public listeners only.
LEAST_PING_MS, LEAST_PUBLIC_PING_MS = 900, 1_500
PING_STRIKES = 10
PUBLIC_LOOKAHEAD = 64 * 1024  # bytes that a stranger's stream may send unasked
MAX_CONNECTIONS = 4096
CONNECTIONS_FULL = 4  # connections with as many streams as they may have, before calls are refused


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits on what the peers of a listener may do."""

    max_concurrent_streams: int = 256
    per_connection: int | None = None  # streams; None: all of them
    max_receive: int = MAX_MESSAGE  # bytes of a message
    least_ping_ms: int = LEAST_PING_MS
    lookahead: int = LOOKAHEAD


def server_options(limits: ServerLimits) -> list[tuple[str, int]]:
    """gRPC options of every listener."""
    most = limits.max_concurrent_streams
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", limits.max_receive),
        ("grpc.max_send_message_length", MAX_MESSAGE),
        ("grpc.http2.lookahead_bytes", limits.lookahead),
        ("grpc.max_metadata_size", METADATA_SOFT),
        ("grpc.absolute_max_metadata_size", METADATA_HARD),
        # A connection without a handshake holds its socket no longer than this.
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
        # Bounds what one peer can do to the others by opening and cancelling calls.
        ("grpc.max_concurrent_streams", limits.per_connection or most),
        # Calls that Python has not taken up yet: above 1,000 gRPC would cancel some silently.
        ("grpc.server.max_pending_requests", max(most, 1000)),
        ("grpc.server.max_pending_requests_hard_limit", max(2 * most, 3000)),
        # Peers may ping so often, however long this process has nothing to send. A peer that pings
        # more often is cut; not at once, as a starved process reads several pings at a time.
        ("grpc.http2.min_ping_interval_without_data_ms", limits.least_ping_ms),
        ("grpc.http2.max_ping_strikes", PING_STRIKES),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 3_000),
        ("grpc.http2.ping_timeout_ms", 3_000),
    ]


def listen(server: Any, bind: str, security: Security, setting: str) -> int:
    """Opens the port of a server of either kind and returns it. setting: names the address in the
    error."""
    bind = join_endpoint(*split_endpoint(bind, setting))
    try:
        credentials = security.server_credentials()
        port = (
            server.add_insecure_port(bind)
            if credentials is None
            else server.add_secure_port(bind, credentials)
        )
    except RuntimeError as error:
        raise ConfigError(f"{setting}: cannot listen on {bind}: {error}") from error
    return int(port)


BY_CERTIFICATE = Caller()  # stands for a caller that is not known yet


class GrpcServer:
    """The gRPC server of a process: add services, start, serve until drained. prompt_bytes: returns
    the current limit of a client's prompt, in bytes. denied: called for each caller that is not let
    in."""

    def __init__(
        self,
        *,
        bind: str,
        security: Security,
        limits: ServerLimits | None = None,
        prompt_bytes: Callable[[], int] = lambda: MAX_REQUEST,
        denied: Callable[[Denied], None] = lambda _: None,
    ) -> None:
        limits = limits or ServerLimits()
        self._bind, self._security = bind, security
        self._serving: dict[str, bool] = {}  # by the name of each service
        self._readers: dict[str, Callable[[bytes], Any]] = {}
        self._changes: set[asyncio.Task[None]] = set()
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(
            interceptors=[_Guard(self._security.access, prompt_bytes, self._readers, denied)],
            # Over all connections; what a connection may hold is bounded below.
            maximum_concurrent_rpcs=CONNECTIONS_FULL * limits.max_concurrent_streams,
            options=server_options(limits),
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    def add(
        self,
        register: Callable[[Any, grpc.aio.Server], None],
        servicer: object,
        name: str,
        readers: Mapping[str, Callable[[bytes], Any]] | None = None,
    ) -> None:
        """Adds a service. name: its full name, which is also its health name. readers: by the names
        of methods that take streams, functions that parse a message's bytes, in place of the
        generated parser."""
        register(servicer, self._server)
        self._serving[name] = False
        self._readers.update(
            {f"/{name}/{method}": read for method, read in (readers or {}).items()}
        )

    async def start(self) -> str:
        """Listens, not yet SERVING; returns the host:port under which others reach it."""
        reflection.enable_server_reflection(
            [*self._serving, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server
        )
        await self.set_serving(False)
        port = listen(self._server, self._bind, self._security, "bind")
        await self._server.start()
        return join_endpoint(split_endpoint(self._bind)[0], port)

    async def set_serving(self, serving: bool, *names: str) -> None:
        """Sets the readiness of these services, or of all. `READY` is that of all together, and the
        empty name (liveness) is SERVING from the start."""
        status = SERVING if serving else NOT_SERVING
        await self._health.set("", SERVING)
        for name in names or [*self._serving]:
            self._serving[name] = serving
            await self._health.set(name, status)
        await self._health.set(READY, SERVING if all(self._serving.values()) else NOT_SERVING)

    def say_serving(self, serving: bool, *names: str) -> None:
        """Sets readiness from code that cannot await; has no effect once the server drains."""
        if serving:
            log.info("server.serving", services=names or [*self._serving])
        else:
            log.warning("server.not_serving", services=names or [*self._serving])
        change = asyncio.get_running_loop().create_task(self.set_serving(serving, *names))
        self._changes.add(change)
        change.add_done_callback(self._changes.discard)

    async def drain(self, grace_s: float) -> None:
        """Health goes to NOT_SERVING first; running calls get `grace_s` seconds."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)


class _Guard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Checks access and size, then turns exceptions into statuses, for the four kinds of
    methods."""

    def __init__(
        self,
        access: Access,
        prompt_bytes: Callable[[], int],
        readers: Mapping[str, Callable[[bytes], Any]],
        denied: Callable[[Denied], None],
    ) -> None:
        self._access, self._prompt_bytes, self._readers = access, prompt_bytes, readers
        self._denied = denied
        self._wrapped: dict[str, Any] = {}

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        method = details.method
        authorization = authorization_in(details.invocation_metadata or ())
        # Certificates are known to the call alone; all other callers are admitted or refused before
        # a request is read.
        if self._access.certificates and authorization is None:
            set_caller(BY_CERTIFICATE)
        else:
            try:
                set_caller(
                    self._access.admit(method, roles.allowed(method), authorization=authorization)
                )
            except Denied as error:
                return self._refusal(method, error)
        found = self._wrapped.get(method)
        if found is None:  # handlers of a method are all alike
            found = self._wrapped[method] = self._wrap(method, handler)
        return found

    def _wrap(self, method: str, handler: Any) -> Any:
        streaming = (handler.request_streaming, handler.response_streaming)
        kind = "_".join("stream" if flag else "unary" for flag in streaming)
        inner, parse = getattr(handler, kind), handler.request_deserializer

        def read(request: Any, context: grpc.aio.ServicerContext) -> Any:
            """Admits a caller that is known by its certificate alone, then parses its request."""
            if current_caller() is BY_CERTIFICATE:
                set_caller(
                    self._access.admit(method, roles.allowed(method), names=names_in(context))
                )
            if handler.request_streaming:
                return request
            check_size(method, request, self._prompt_bytes())
            return parse(request) if parse is not None else request

        async def answer(request: Any, context: grpc.aio.ServicerContext) -> Any:
            try:
                made = inner(read(request, context), context)
                if inspect.isawaitable(made):  # a single response, or a stream written by itself
                    return await made
                async with contextlib.aclosing(made) as responses:
                    async for response in responses:
                        await context.write(response)
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await self._abort(context, method, error)

        build = getattr(grpc, f"{kind}_rpc_method_handler")
        return build(
            answer,
            # A single request is parsed in `read`, once its size is checked.
            request_deserializer=self._readers.get(method, parse)
            if handler.request_streaming
            else None,
            response_serializer=handler.response_serializer,
        )

    def _refusal(self, method: str, error: Denied) -> Any:
        """A handler for any kind of method, which reads nothing and ends the call with the
        error."""

        async def refuse(_: object, context: grpc.aio.ServicerContext) -> None:
            await self._abort(context, method, error)

        return grpc.stream_stream_rpc_method_handler(refuse)

    async def _abort(
        self, context: grpc.aio.ServicerContext, method: str, error: Exception
    ) -> NoReturn:
        if isinstance(error, Denied):
            self._denied(error)
        try:
            await context.abort(*status_of(method, error))
        except grpc.aio.InternalError:
            # the caller left meanwhile, at its deadline say; gRPC is about to cancel this task
            raise asyncio.CancelledError from None
        raise AssertionError("abort returned")


def authorization_in(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The authorization of a call; "", which is never valid, of several; None without any."""
    shown = [value for key, value in metadata if key == "authorization" and isinstance(value, str)]
    return shown[0] if len(shown) == 1 else "" if shown else None


def names_in(context: Any) -> list[str]:
    """Alternative names of the caller's certificate, which TLS has verified."""
    found = context.auth_context().get("x509_subject_alternative_name", ())
    return [name.decode("utf-8", "replace") for name in found]


def _retry_hint(error: Overloaded) -> list[tuple[str, str | bytes]]:
    """Metadata that says when to retry, in three forms: for people and this project's client, for
    gRPC's own retries, as RetryInfo."""
    hint = int(error.retry_after_s * 1000)
    status = status_pb2.Status(code=grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], message=str(error))
    info = error_details_pb2.RetryInfo()
    info.retry_delay.FromMilliseconds(hint)
    status.details.add().Pack(info)
    return [
        ("retry-after-ms", str(hint)),
        ("grpc-retry-pushback-ms", str(hint)),
        ("grpc-status-details-bin", status.SerializeToString()),
    ]


Status = tuple[grpc.StatusCode, str, tuple[tuple[str, str | bytes], ...]]


def status_of(method: str, error: Exception) -> Status:
    """The status that a caller gets for an error: code, details, trailing metadata. A bug is logged
    under a reference, which is all that its details hold."""
    trailing: list[tuple[str, str | bytes]] = []
    if isinstance(error, DecodeError):
        error = InvalidRequest("request", "is no message of this method")
    if isinstance(error, InvalidRequest):
        # gRPC ends a call without its status for metadata that are not printable ASCII
        error = type(error)(ascii(error.field)[1:-1], error.problem)
        trailing.append(("bad-field", error.field))
    if isinstance(error, Overloaded):
        trailing += _retry_hint(error)
    for kind, status in _STATUS:
        if isinstance(error, kind):
            # half a character (a lone surrogate) cannot be sent
            return status, str(error).encode(errors="backslashreplace").decode(), tuple(trailing)
    reference = secrets.token_hex(4)
    log.error("rpc.failed", method=method, reference=reference, exc_info=error)
    return grpc.StatusCode.INTERNAL, f"internal error, reference {reference}", ()
