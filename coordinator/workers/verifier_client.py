"""A verifier, as membership holds it: the control stream of its lane, and more of them.

A lane hears everything of its stream. Until there is one, whoever took the verifier in hears that it is lost or leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import grpc

from coordinator.lanes.facts import VerifierFacts
from coordinator.workers.control_client import ControlClient
from dspark.rounds.control import Draining, Up
from dspark.runtime.telemetry import Metrics


class VerifierClient:
    """Keeps `Listener`. Lives on the event loop."""

    def __init__(
        self,
        facts: VerifierFacts,
        channel: grpc.aio.Channel,
        token: str | None,
        metrics: Metrics,
        on_lost: Callable[[str], None],
        on_draining: Callable[[float], None],
    ) -> None:
        self.facts = facts
        self._channel, self._token, self._metrics = channel, token, metrics
        self.on_lost, self.on_draining = on_lost, on_draining
        self.stream = self.open()
        self.stream.listen(self)

    def open(self) -> ControlClient:
        """A stream of its own: what comes through it is freed when it ends."""
        return ControlClient(
            self._channel,
            name=self.facts.name,
            incarnation=self.facts.incarnation,
            vocab_size=self.facts.vocab_size,
            token=self._token,
            metrics=self._metrics,
        )

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
