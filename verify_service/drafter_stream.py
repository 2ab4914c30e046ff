"""The stream to one drafter: orders out, blocks in.

It uses blocking gRPC so that rounds pass no event loop. Turns only queue messages, which a thread
of gRPC sends. A thread of the stream finds the drafter's port for rounds, reads events, and hands
them on. A stream that breaks or cannot begin calls `lost` once; its owner opens another one later.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import structlog

from dspark.runtime.addresses import join_endpoint, split_endpoint
from dspark.runtime.channel import WORKER_WATCH_MS, auth_metadata, sync_channel
from dspark.runtime.security import Security
from dspark.runtime.tls import Tls
from dspark.wire.v1 import draft_pb2, draft_pb2_grpc, types_pb2

log = structlog.get_logger("dspark.rounds")

MAX_UNSENT = 4096  # messages; beyond that the stream is closed
DESCRIBE_S = 2.0  # timeout of the request for the port of rounds
REACH_S = 1.0  # timeout to connect to it, before rounds use the main port
IDLE_S = 0.004  # time without a message to send, after which `idle` is called


class DrafterStream:
    """A stream of rounds to one drafter. came: called with the stream and every event; lost: called
    once, with the stream and the reason of its end. Both run on a thread of the stream."""

    def __init__(
        self,
        endpoint: str,
        hello: draft_pb2.RoundsHello,
        security: Security,
        came: Callable[[DrafterStream, draft_pb2.RoundsEvent], None],
        lost: Callable[[DrafterStream, str], None],
    ) -> None:
        self._endpoint, self._tls = endpoint, security.tls
        self._metadata = auth_metadata(security.token)
        self._came, self._lost = came, lost
        # called on a gRPC thread, IDLE_S after the last message was sent
        self.idle: Callable[[], None] = lambda: None
        self._unsent: queue.SimpleQueue[draft_pb2.RoundsCommand | None] = queue.SimpleQueue()
        self._put = self._left = 0  # messages queued, messages sent
        self._closed = False
        self._call: Any = None  # the RPC, once the drafter was found
        self.send(draft_pb2.RoundsCommand(hello=hello))
        threading.Thread(target=self._run, name=f"rounds-{endpoint}", daemon=True).start()

    def send(self, command: draft_pb2.RoundsCommand) -> None:
        """Queues a message; never waits. A closed or broken stream drops it."""
        if self._unsent.qsize() >= MAX_UNSENT:
            self.close()
        elif not self._closed:
            self._put += 1
            self._unsent.put(command)

    @property
    def leaving(self) -> bool:
        """Whether a queued message has not been sent yet."""
        return self._left < self._put and not self._closed

    def _messages(self) -> Iterator[draft_pb2.RoundsCommand]:
        wait_s: float | None = None
        while True:
            try:
                command = self._unsent.get(timeout=wait_s)
            except queue.Empty:
                wait_s = None
                self.idle()
                continue
            if command is None:
                break
            yield command
            self._left += 1  # gRPC asks for the next message once this one is sent
            wait_s = IDLE_S

    def close(self) -> None:
        """Ends the stream; the drafter frees what was opened through it."""
        if not self._closed:
            self._closed = True
            self._unsent.put(None)
            if self._call is not None:  # else `_run` cancels it once it exists
                self._call.cancel()

    def _run(self) -> None:
        why = "the drafter ended the stream"
        try:
            with contextlib.ExitStack() as channels:
                stub = self._found(channels)
                self._call = stub.Rounds(
                    self._messages(), metadata=self._metadata, wait_for_ready=False
                )
                if self._closed:
                    self._call.cancel()
                for event in self._call:
                    self._came(self, event)
        except grpc.RpcError as error:
            why = f"{error.code().name.lower()}: {error.details()}"
            del error
        # unreadable certificates, or a bug; rounds go on without this drafter
        except Exception as error:
            log.error("drafter_stream.failed", drafter=self._endpoint, exc_info=error)
            why = f"failed: {error}"
        finally:
            self._closed = True
            self._unsent.put(None)  # ends `_messages`
            self._lost(self, why)

    def _found(self, channels: contextlib.ExitStack) -> Any:
        """A stub at the drafter's port for rounds; at its main port if there is none, or none that
        connects."""
        main = channels.enter_context(_open(self._endpoint, self._tls))
        stub = draft_pb2_grpc.DraftStub(main)  # type: ignore[no-untyped-call]
        port = stub.Describe(
            types_pb2.DescribeRequest(), metadata=self._metadata, timeout=DESCRIBE_S
        ).rounds_port
        if not port:
            return stub
        endpoint = join_endpoint(split_endpoint(self._endpoint)[0], port)
        own = channels.enter_context(_open(endpoint, self._tls))
        try:
            grpc.channel_ready_future(own).result(timeout=REACH_S)
        except grpc.FutureTimeoutError:
            log.warning("drafter_stream.port_not_reached", drafter=self._endpoint, port=port)
            own.close()
            return stub
        main.close()
        return draft_pb2_grpc.DraftStub(own)  # type: ignore[no-untyped-call]


def _open(endpoint: str, tls: Tls | None) -> contextlib.AbstractContextManager[grpc.Channel]:
    return contextlib.closing(sync_channel(endpoint, tls=tls, watch_ms=WORKER_WATCH_MS))
