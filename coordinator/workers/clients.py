"""Workers as membership holds them.

A verifier is held by the control stream of its lane and more of them, a drafter by a stream that tells of its end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import grpc

from coordinator.lanes.facts import DrafterFacts, VerifierFacts
from coordinator.workers.control_client import ControlClient
from dspark.rounds.control import Draining, Up
from dspark.runtime.channel import auth_metadata
from dspark.wire.v1 import draft_pb2, draft_pb2_grpc


class VerifierClient:
    """Keeps `Listener`. Lives on the event loop.

    A lane hears everything of its stream. Until there is one, whoever took the verifier in hears that it is lost or
    leaves.
    """

    def __init__(
        self,
        facts: VerifierFacts,
        channel: grpc.aio.Channel,
        token: str | None,
        on_lost: Callable[[str], None],
        on_draining: Callable[[float], None],
    ) -> None:
        self.facts = facts
        self._channel, self._token = channel, token
        self.on_lost, self.on_draining = on_lost, on_draining
        self.stream = self.open()
        self.stream.listen(self)

    def open(self) -> ControlClient:
        """A stream of its own: what comes through it is freed when it ends."""
        facts = self.facts
        return ControlClient(self._channel, name=facts.name, incarnation=facts.incarnation, token=self._token)

    def close(self, why: str) -> None:
        self.stream.close(why)

    async def ended(self) -> None:
        """Waits until the lane's stream is gone for good."""
        await self.stream.ended()

    def heard(self, news: Sequence[Up]) -> None:
        for each in news:
            if isinstance(each, Draining):
                self.on_draining(each.finish_within_s)

    def lost(self, why: str) -> None:
        self.on_lost(why)


class DrafterClient:
    """Keeps `facts.DrafterPort`; what is drafted, verifiers ask for. Lives on the event loop."""

    def __init__(
        self,
        facts: DrafterFacts,
        channel: grpc.aio.Channel,
        token: str | None,
        on_lost: Callable[[str], None],
        on_draining: Callable[[float], None],
    ) -> None:
        """on_draining: gets the seconds that are left. on_lost: called once."""
        self.facts = facts
        self._on_lost, self._on_draining = on_lost, on_draining
        self._closed = False
        stub = draft_pb2_grpc.DraftStub(channel)  # type: ignore[no-untyped-call]
        self._call = stub.Watch(draft_pb2.WatchRequest(incarnation=facts.incarnation), metadata=auth_metadata(token))
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    def close(self, why: str) -> None:
        """It is lost, or let go."""
        if self._closed:
            return
        self._closed = True
        self._call.cancel()
        self._watching.cancel()
        self._on_lost(f"{self.facts.name}: {why}")

    async def ended(self) -> None:
        """Waits until the stream is gone for good."""
        with contextlib.suppress(asyncio.CancelledError):
            await self._watching

    async def _watch(self) -> None:
        why = "the stream ended"
        try:
            async for draining in self._call:
                self._on_draining(draining.finish_within_ms / 1000)
        except grpc.aio.AioRpcError as error:
            why = f"{error.code().name.lower()}: {error.details()}"
        finally:
            self.close(why)
