"""The stream to one drafter: orders out, blocks in. Blocking gRPC, so that rounds pass no event loop.

The device thread writes; a thread of the stream reads and only hands on. A stream that breaks, or was never answered,
says so once; whoever owns it opens another one later.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import grpc
import structlog

from dspark.runtime.channel import WORKER_WATCH_MS, auth_metadata, sync_channel
from dspark.runtime.tls import Tls
from dspark.wire.v1 import draft_pb2, draft_pb2_grpc

log = structlog.get_logger("dspark.rounds")

MAX_UNSENT = 4096  # messages; a drafter that takes no more is let go


class DrafterStream:
    """came: every event; lost: why nothing more comes, once. Both are called on a thread of the stream."""

    def __init__(
        self,
        endpoint: str,
        hello: draft_pb2.RoundsHello,
        *,
        token: str | None,
        tls: Tls | None,
        came: Callable[[draft_pb2.RoundsEvent], None],
        lost: Callable[[str], None],
    ) -> None:
        self._endpoint, self._token = endpoint, token
        self._came, self._lost = came, lost
        self._unsent: queue.SimpleQueue[draft_pb2.RoundsCommand | None] = queue.SimpleQueue()
        self._closed = False
        self._channel = sync_channel(endpoint, tls=tls, watch_ms=WORKER_WATCH_MS)
        self.send(draft_pb2.RoundsCommand(hello=hello))
        stub = draft_pb2_grpc.DraftStub(self._channel)  # type: ignore[no-untyped-call]
        self._call = stub.Rounds(self._commands(), metadata=auth_metadata(token), wait_for_ready=False)
        threading.Thread(target=self._read, name=f"rounds-{endpoint}", daemon=True).start()

    def send(self, command: draft_pb2.RoundsCommand) -> None:
        """Never waits. What a broken stream is given is lost with it."""
        if self._unsent.qsize() >= MAX_UNSENT:
            self._call.cancel()
        elif not self._closed:
            self._unsent.put(command)

    def close(self) -> None:
        """Ends the stream; the drafter frees what was opened through it."""
        if not self._closed:
            self._closed = True
            self._unsent.put(None)
            self._call.cancel()

    def _commands(self) -> Iterator[draft_pb2.RoundsCommand]:
        return iter(self._unsent.get, None)

    def _read(self) -> None:
        why = "the drafter ended the stream"
        try:
            for event in self._call:
                self._came(event)
        except grpc.RpcError as error:
            why = f"{self._call.code().name.lower()}: {self._call.details()}"
            del error
        except Exception as error:  # a bug, and no reason to stop rounds
            log.error("drafter_stream.failed", drafter=self._endpoint, exc_info=error)
            why = "its answer could not be read"
        finally:
            self._unsent.put(None)  # whoever waits for something to send
            self._channel.close()
            self._lost(why)
