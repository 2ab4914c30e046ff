"""`RoundsPort` over a control stream: what a coordinator and the rounds of one verifier tell each other, over gRPC.

Decides nothing. Orders that are told together travel together. Bounded: a verifier that takes no more is let go, and so
is one that breaks the protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import grpc
import structlog

from dspark.errors import PeerError
from dspark.rounds.control import Down, Listener
from dspark.runtime.aio_call import ending_as_told
from dspark.runtime.channel import auth_metadata
from dspark.wire.control_down import write_down
from dspark.wire.control_up import read_up
from dspark.wire.v1 import verify_pb2, verify_pb2_grpc

log = structlog.get_logger("dspark.clients")

MAX_UNSENT = 65_536  # orders that wait to be sent
SIGNS = 4  # of life in a lease


class ControlClient:
    """Keeps `RoundsPort`. Lives on the event loop. incarnation: of the verifier process meant."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        name: str,
        incarnation: int,
        token: str | None,
    ) -> None:
        self._name, self._incarnation = name, incarnation
        self._listener: Listener | None = None
        self._unsent: list[Down] = []
        self._more = asyncio.Event()
        self._lease_s: float | None = None  # known once the verifier has spoken
        self._closed = False
        stub = verify_pb2_grpc.VerifyStub(channel)  # type: ignore[no-untyped-call]
        self._call = ending_as_told(stub.Control(self._messages(), metadata=auth_metadata(token)))
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    def listen(self, listener: Listener) -> None:
        self._listener = listener

    def tell(self, orders: Sequence[Down]) -> None:
        if self._closed:
            return
        self._unsent += orders
        self._more.set()
        if len(self._unsent) > MAX_UNSENT:
            self.close(f"{len(self._unsent)} orders wait to be sent")

    def close(self, why: str) -> None:
        """It is lost, or let go."""
        if self._closed:
            return
        self._closed = True
        self._unsent.clear()
        self._more.set()
        self._call.cancel()
        self._listening.cancel()
        if self._listener is not None:
            self._listener.lost(f"{self._name}: {why}")

    async def ended(self) -> None:
        """Waits until the stream is gone for good."""
        with contextlib.suppress(asyncio.CancelledError):
            await self._listening

    async def _messages(self) -> AsyncIterator[verify_pb2.ControlDown]:
        while not self._closed:
            with contextlib.suppress(TimeoutError):  # nothing to say is a sign of life
                async with asyncio.timeout(None if self._lease_s is None else self._lease_s / SIGNS):
                    await self._more.wait()
            self._more.clear()
            orders, self._unsent = self._unsent, []
            yield write_down(self._incarnation, orders)

    async def _listen(self) -> None:
        why = "the stream ended"
        try:
            async for message in self._call:
                self._heard(message)
        except grpc.aio.AioRpcError as error:
            why = f"{error.code().name.lower()}: {error.details()}"
        except PeerError as error:
            why = f"broke the protocol: {error}"
        except Exception as error:  # a bug: it costs this verifier, and whoever holds it knows at once
            log.error("control.failed", verifier=self._name, exc_info=error)
            why = "what it said could not be read; see the coordinator's log"
        finally:
            self.close(why)

    def _heard(self, message: verify_pb2.ControlUp) -> None:
        if message.incarnation != self._incarnation:
            raise PeerError(f"incarnation: {message.incarnation} speaks, {self._incarnation} was meant")
        if message.lease_ms:
            self._lease_s = message.lease_ms * 1e-3
            self._more.set()
        news = read_up(message)
        if news and self._listener is not None:
            self._listener.heard(news)
