"""Streams to workers, over gRPC: a worker is lost in the moment its stream ends, and let go by
ending it.

A verifier is held by the control stream of its lane and more of them, a drafter by a stream that
tells of its end. Nothing is decided here. A verifier that takes no more orders is let go, and so is
a worker that breaks the protocol.
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
SIGNS = 4  # of life in a lease


class WorkerStream(ABC):
    """Lost once, whether it ends, breaks or is let go. Lives on the event loop."""

    def __init__(self, name: str, call: Any) -> None:
        self._name, self._call, self._closed = name, call, False
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    def close(self, why: str) -> None:
        """It is lost, or let go."""
        if self._closed:
            return
        self._closed = True
        self._call.cancel()
        self._listening.cancel()
        self._lost(f"{self._name}: {why}")

    async def ended(self) -> None:
        """Waits until the stream is gone for good."""
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
        # a bug: it costs this worker, and whoever holds it knows at once
        except Exception as error:
            log.error("control.failed", worker=self._name, exc_info=error)
            why = "what it said could not be read; see the coordinator's log"
        finally:
            self.close(why)

    @abstractmethod
    def _hear(self, message: Any) -> None:
        """What it says; PeerError where that breaks the protocol."""

    @abstractmethod
    def _lost(self, why: str) -> None:
        """Called once."""


class ControlClient(WorkerStream):
    """Keeps `RoundsPort`. Orders that are told together travel together. incarnation: of the
    verifier process meant."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        name: str,
        incarnation: int,
        token: str | None,
    ) -> None:
        self._incarnation = incarnation
        self._listener: Listener | None = None
        self._unsent: list[Down] = []
        self._more = asyncio.Event()
        self._lease_s: float | None = None  # known once the verifier has spoken
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
            with contextlib.suppress(TimeoutError):  # nothing to say is a sign of life
                async with asyncio.timeout(
                    None if self._lease_s is None else self._lease_s / SIGNS
                ):
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
        news = read_up(message)
        if news and self._listener is not None:
            self._listener.heard(news)

    def _lost(self, why: str) -> None:
        self._unsent.clear()
        self._more.set()
        if self._listener is not None:
            self._listener.lost(why)


class VerifierClient(ControlClient):
    """A verifier by the stream of its lane. Until there is one, whoever took the verifier in hears
    that it is lost or leaves."""

    def __init__(
        self,
        facts: VerifierFacts,
        channel: grpc.aio.Channel,
        token: str | None,
        on_lost: Callable[[str], None],
        on_draining: Callable[[float], None],
    ) -> None:
        self.facts, self._channel, self._token = facts, channel, token
        self.on_lost, self.on_draining = on_lost, on_draining
        super().__init__(channel, name=facts.name, incarnation=facts.incarnation, token=token)
        self.listen(self)

    def open(self) -> ControlClient:
        """A stream of its own: what comes through it is freed when it ends."""
        facts = self.facts
        return ControlClient(
            self._channel, name=facts.name, incarnation=facts.incarnation, token=self._token
        )

    def heard(self, news: Sequence[Up]) -> None:
        for each in news:
            if isinstance(each, Draining):
                self.on_draining(each.finish_within_s)

    def lost(self, why: str) -> None:
        self.on_lost(why)


class DrafterClient(WorkerStream):
    """Keeps `facts.DrafterPort`; what is drafted, verifiers ask for."""

    def __init__(
        self,
        facts: DrafterFacts,
        channel: grpc.aio.Channel,
        token: str | None,
        on_lost: Callable[[str], None],
        on_draining: Callable[[float], None],
    ) -> None:
        """on_draining: gets the seconds that are left. on_lost: called once."""
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
