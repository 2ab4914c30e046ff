"""gRPC streams to workers: a worker is lost when its stream ends, and dropped by ending its stream.

A verifier has the control stream of its lane, and may have more of them; a drafter has a stream on
which it announces its end. Nothing is decided here. A verifier that reads no more orders is
dropped, and so is a worker that breaks the protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
import structlog

from coordinator.lanes.facts import DrafterFacts, VerifierFacts
from dspark.errors import PeerError
from dspark.rounds.control import Down, Draining, Listener, Up
from dspark.runtime.aio_call import ending_as_told
from dspark.runtime.channel import auth_metadata
from dspark.wire.control_down import write_down
from dspark.wire.control_up import read_up
from dspark.wire.v1 import draft_pb2, draft_pb2_grpc, types_pb2, verify_pb2, verify_pb2_grpc

log = structlog.get_logger("dspark.clients")

MAX_UNSENT = 65_536  # orders that wait to be sent
SIGNS = 4  # messages per lease that keep it alive


class WorkerStream(ABC):
    """A stream to a worker. Calls `_lost` once, whether it ends, breaks or is closed. Needs the
    running event loop."""

    def __init__(self, name: str, call: Any) -> None:
        self._name, self._call, self._closed = name, call, False
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    def close(self, why: str) -> None:
        """Ends the stream and reports it as lost because of `why`. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._call.cancel()
        self._listening.cancel()
        self._lost(f"{self._name}: {why}")

    async def ended(self) -> None:
        """Waits until the task that reads the stream has ended."""
        with contextlib.suppress(asyncio.CancelledError):
            await self._listening

    async def _listen(self) -> None:
        why = "the stream ended"
        try:
            async for message in self._call:
                self._hear(message)
        except grpc.aio.AioRpcError as error:
            why = f"{error.code().name.lower()}: {error.details()}"
        except PeerError as error:
            why = f"broke the protocol: {error}"
        # a bug: this worker is lost, and its owner is notified at once
        except Exception as error:
            log.error("control.failed", worker=self._name, exc_info=error)
            why = "what it said could not be read; see the coordinator's log"
        finally:
            self.close(why)

    @abstractmethod
    def _hear(self, message: Any) -> None:
        """Handles one message; raises PeerError when it breaks the protocol."""

    @abstractmethod
    def _lost(self, why: str) -> None:
        """Reports the loss; called once."""


class ControlClient(WorkerStream):
    """A control stream to a verifier; implements `RoundsPort`. Orders of one call are sent in one
    message. incarnation: the verifier process that is expected."""

    def __init__(
        self, channel: grpc.aio.Channel, *, name: str, incarnation: int, token: str | None
    ) -> None:
        self._incarnation = incarnation
        self._listener: Listener | None = None
        self._unsent: list[Down] = []
        self._more = asyncio.Event()
        self._lease_s: float | None = None  # known once the verifier has sent it
        stub = verify_pb2_grpc.VerifyStub(channel)  # type: ignore[no-untyped-call]
        super().__init__(
            name, ending_as_told(stub.Control(self._messages(), metadata=auth_metadata(token)))
        )

    def listen(self, listener: Listener) -> None:
        self._listener = listener

    def tell(self, orders: Sequence[Down]) -> None:
        if self._closed:
            return
        self._unsent += orders
        self._more.set()
        if len(self._unsent) > MAX_UNSENT:
            self.close(f"{len(self._unsent)} orders wait to be sent")

    async def _messages(self) -> AsyncIterator[verify_pb2.ControlDown]:
        while not self._closed:
            sign_s = None if self._lease_s is None else self._lease_s / SIGNS
            with contextlib.suppress(TimeoutError):  # an empty message keeps the lease alive
                async with asyncio.timeout(sign_s):
                    await self._more.wait()
            self._more.clear()
            orders, self._unsent = self._unsent, []
            yield write_down(self._incarnation, orders)

    def _hear(self, message: verify_pb2.ControlUp) -> None:
        if message.incarnation != self._incarnation:
            raise PeerError(
                f"incarnation: {message.incarnation} speaks, {self._incarnation} was meant"
            )
        if message.lease_ms:
            self._lease_s = message.lease_ms * 1e-3
            self._more.set()
        self._report(read_up(message))

    def _report(self, news: Sequence[Up]) -> None:
        if self._listener is not None:
            self._listener.heard(news)

    def _lost(self, why: str) -> None:
        self._unsent.clear()
        self._more.set()
        if self._listener is not None:
            self._listener.lost(why)


class VerifierClient(ControlClient):
    """A verifier and the control stream of its lane."""

    def __init__(
        self,
        facts: VerifierFacts,
        channel: grpc.aio.Channel,
        token: str | None,
        on_lost: Callable[[str], None],
        on_draining: Callable[[float], None],
    ) -> None:
        """on_draining, on_lost: as of a `DrafterClient`; the lane, if there is one, hears first."""
        self.facts, self._channel, self._token = facts, channel, token
        self._on_lost, self._on_draining = on_lost, on_draining
        super().__init__(channel, name=facts.name, incarnation=facts.incarnation, token=token)

    def open(self) -> ControlClient:
        """Opens another control stream; sequences opened through it are freed when it ends."""
        facts = self.facts
        return ControlClient(
            self._channel, name=facts.name, incarnation=facts.incarnation, token=self._token
        )

    def _report(self, news: Sequence[Up]) -> None:
        super()._report(news)
        for each in news:
            if isinstance(each, Draining):
                self._on_draining(each.finish_within_s)

    def _lost(self, why: str) -> None:
        try:
            super()._lost(why)
        finally:  # a bug must not keep the verifier out for ever
            self._on_lost(why)


class DrafterClient(WorkerStream):
    """A drafter; implements `facts.DrafterPort`. Verifiers, not the coordinator, order drafts."""

    def __init__(
        self,
        facts: DrafterFacts,
        channel: grpc.aio.Channel,
        token: str | None,
        on_lost: Callable[[str], None],
        on_draining: Callable[[float], None],
    ) -> None:
        """on_draining: called with the seconds until the drafter ends. on_lost: called once."""
        self.facts, self._on_lost, self._on_draining = facts, on_lost, on_draining
        stub = draft_pb2_grpc.DraftStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Watch(
            draft_pb2.WatchRequest(incarnation=facts.incarnation), metadata=auth_metadata(token)
        )
        super().__init__(facts.name, call)

    def _hear(self, message: types_pb2.Draining) -> None:
        self._on_draining(message.finish_within_ms / 1000)

    def _lost(self, why: str) -> None:
        self._on_lost(why)


WorkerPort = VerifierClient | DrafterClient
