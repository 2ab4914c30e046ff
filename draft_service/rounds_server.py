"""The server of the rounds port: a stream is served by two blocking threads, without an event loop.

Access, TLS, bounds and statuses are those of `GrpcServer`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import structlog

from draft_service.service import NAME, OpenRounds
from dspark.errors import Denied, Overloaded
from dspark.runtime import roles
from dspark.runtime.outbox import MAX_EVENTS
from dspark.runtime.security import Security
from dspark.runtime.server import (
    ServerLimits,
    authorization_in,
    listen,
    names_in,
    server_options,
    status_of,
)
from dspark.runtime.telemetry import Metrics
from dspark.runtime.wire_limits import Read
from dspark.wire.v1 import draft_pb2

log = structlog.get_logger("dspark.draft")

METHOD = f"/{NAME}/Rounds"
MAX_STREAMS = 64
START_STOP_S = 1.0

Command = Read[draft_pb2.RoundsCommand]
Event = draft_pb2.RoundsEvent


class RoundsServer:
    """Serves rounds from its construction on. open_rounds: makes the `Rounds` of a stream from two
    callbacks, one for its events and one for the error that ends it; any thread may call them."""

    def __init__(
        self,
        bind: str,
        security: Security,
        metrics: Metrics,
        read: Callable[[bytes], Command],
        open_rounds: OpenRounds,
    ) -> None:
        self._access, self._metrics, self._open = security.access, metrics, open_rounds
        handler = grpc.stream_stream_rpc_method_handler(self._answer, read, Event.SerializeToString)
        self._server = grpc.server(
            ThreadPoolExecutor(MAX_STREAMS, thread_name_prefix="rounds"),
            handlers=(grpc.method_handlers_generic_handler(NAME, {"Rounds": handler}),),
            maximum_concurrent_rpcs=MAX_STREAMS,
            options=server_options(ServerLimits(MAX_STREAMS)),
        )
        self.port = listen(self._server, bind, security, "rounds_port")
        self._server.start()

    def close(self) -> None:
        """Ends every stream; waits up to START_STOP_S for their threads."""
        self._server.stop(0).wait(START_STOP_S)

    def _answer(self, commands: Iterator[Command], context: Any) -> Iterator[Event]:
        try:
            metadata = context.invocation_metadata() or ()
            shown = authorization_in(metadata)
            self._access.admit(
                METHOD, roles.allowed(METHOD), authorization=shown, names=names_in(context)
            )
            yield from self._events(commands, context)
        except Exception as error:
            if isinstance(error, Denied):
                self._metrics.denied(error)
            if not context.is_active():
                return  # the caller has left
            code, details, trailing = status_of(METHOD, error)
            context.set_trailing_metadata(trailing)
            context.abort(code, details)

    def _events(self, commands: Iterator[Command], context: Any) -> Iterator[Event]:
        ahead: queue.SimpleQueue[Event | Exception | None] = queue.SimpleQueue()
        overrun = False

        def say(event: Event) -> None:
            nonlocal overrun
            if not overrun and ahead.qsize() < MAX_EVENTS:
                ahead.put(event)
                return
            self._metrics.dropped.labels(kind="event", reason="not_read").inc()
            if not overrun:  # the stream ends as soon as its peer reads, or is gone
                log.warning("stream.not_read", events=MAX_EVENTS)
                overrun = True
                ahead.put(Overloaded("events were not read", retry_after_s=1.0))

        def read() -> None:
            end: Exception | None = None
            try:
                for command in commands:
                    stream.hear(command)
            except grpc.RpcError:
                pass  # the call is over
            except Exception as error:
                end = error
            ahead.put(end)

        if not context.add_callback(lambda: ahead.put(None)):
            return
        stream = self._open(say, ahead.put)
        try:
            threading.Thread(target=read, name="rounds-read", daemon=True).start()
            while True:
                try:
                    event = ahead.get(timeout=stream.left_s())
                except queue.Empty:
                    continue
                if event is None:
                    return
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            stream.close()
