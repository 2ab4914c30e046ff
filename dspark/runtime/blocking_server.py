"""A listener of its own for one method whose messages pass no event loop: a stream is two threads that block.

Access, TLS, bounds and statuses are those of `server.GrpcServer`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, Protocol, TypeVar

import grpc

from dspark.errors import Overloaded
from dspark.runtime import roles
from dspark.runtime.outbox import MAX_EVENTS
from dspark.runtime.security import Security
from dspark.runtime.server import ServerLimits, authorization_in, listen, names_in, server_options, status_of

MAX_STREAMS = 64
START_STOP_S = 1.0

C = TypeVar("C", contravariant=True)
E = TypeVar("E")


class BlockingStream(Protocol[C]):
    """One call, as its threads see it."""

    def hear(self, command: C) -> None:
        """What came. Raises why the stream ends."""

    def left_s(self) -> float:
        """Seconds after which to ask again, if nothing happens; raises why the stream ends then."""

    def close(self) -> None:
        """It is over."""


Open = Callable[[Callable[[E], None], Callable[[Exception], None]], BlockingStream[C]]


class BlockingServer(Generic[C, E]):
    """open: makes a stream, given what takes its events to the peer and what ends it, both to be called on any thread.

    Listens from the start.
    """

    def __init__(
        self, method: str, bind: str, security: Security, read: Callable[[bytes], C], open: Open[E, C]
    ) -> None:
        security.check_bind(bind)
        self._method, self._access, self._open = method, security.access, open
        service, _, name = method.strip("/").rpartition("/")
        handler = grpc.stream_stream_rpc_method_handler(self._answer, read, lambda event: event.SerializeToString())
        self._server = grpc.server(
            ThreadPoolExecutor(MAX_STREAMS, thread_name_prefix=name.lower()),
            handlers=(grpc.method_handlers_generic_handler(service, {name: handler}),),
            maximum_concurrent_rpcs=MAX_STREAMS,
            options=server_options(ServerLimits(MAX_STREAMS)),
        )
        self.port = listen(self._server, bind, security, f"{name.lower()}_port")
        self._server.start()

    def close(self) -> None:
        """Ends every stream; waits a little for their threads."""
        self._server.stop(0).wait(START_STOP_S)

    def _answer(self, commands: Iterator[C], context: Any) -> Iterator[E]:
        try:
            metadata = context.invocation_metadata() or ()
            self._access.admit(
                self._method,
                roles.allowed(self._method),
                authorization=authorization_in(metadata),
                names=names_in(context),
            )
            yield from self._events(commands, context)
        except Exception as error:
            if not context.is_active():
                return  # nobody is there to be told
            code, details, trailing = status_of(self._method, error)
            context.set_trailing_metadata(trailing)
            context.abort(code, details)

    def _events(self, commands: Iterator[C], context: Any) -> Iterator[E]:
        ahead: queue.SimpleQueue[E | Exception | None] = queue.SimpleQueue()

        overrun = False

        def say(event: E) -> None:
            nonlocal overrun
            if overrun:
                return  # the stream ends as soon as its peer reads, or is gone
            overrun = ahead.qsize() >= MAX_EVENTS
            ahead.put(Overloaded("events were not read", retry_after_s=1.0) if overrun else event)

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
            threading.Thread(target=read, name=f"{self._method.rpartition('/')[2].lower()}-read", daemon=True).start()
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
