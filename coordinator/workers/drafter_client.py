"""A drafter, as membership holds it: a stream that tells of its end. What is drafted, verifiers ask for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import grpc

from coordinator.lanes.facts import DrafterFacts
from dspark.runtime.channel import auth_metadata
from dspark.wire.v1 import draft_pb2, draft_pb2_grpc


class DrafterClient:
    """Keeps `facts.Drafter`. Lives on the event loop."""

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
        self._why_lost: str | None = None
        stub = draft_pb2_grpc.DraftStub(channel)  # type: ignore[no-untyped-call]
        self._call = stub.Watch(draft_pb2.WatchRequest(incarnation=facts.incarnation), metadata=auth_metadata(token))
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    def close(self, why: str) -> None:
        """Lets it go."""
        self._lose(why)

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
            self._lose(why)

    def _lose(self, why: str) -> None:
        if self._why_lost is not None:
            return
        self._why_lost = why
        self._call.cancel()
        self._watching.cancel()
        self._on_lost(f"{self.facts.name}: {why}")
