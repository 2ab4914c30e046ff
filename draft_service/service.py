"""The Draft servicer: what this drafter is, and one session per coordinator."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator

import grpc

from draft_service.cohorts import Cohorts
from draft_service.interface import Engine
from draft_service.session import DraftSession
from dspark.runtime.cost_store import Curve
from dspark.runtime.device_worker import DeviceWorker
from dspark.runtime.draining import Draining
from dspark.runtime.telemetry import Metrics
from dspark.runtime.wire_limits import Read
from dspark.wire import codec
from dspark.wire.v1 import draft_pb2, draft_pb2_grpc, types_pb2

NAME = "dspark.wire.v1.Draft"


class DraftService(draft_pb2_grpc.DraftServicer):
    """Answers Describe and Session."""

    def __init__(
        self,
        *,
        engine: Engine,
        device: DeviceWorker,
        cohorts: Cohorts,
        metrics: Metrics,
        incarnation: int,
        cost: Curve | None,
    ) -> None:
        self._engine = engine
        self._device = device
        self._cohorts = cohorts
        self._metrics = metrics
        self._incarnation = incarnation
        self._cost = cost
        self._draining = Draining()
        self.metrics_port = 0  # known once it listens

    def drain(self, grace_s: float) -> None:
        """Takes no new sequences from now on, and tells every coordinator so."""
        self._draining.begin(grace_s)

    async def Describe(
        self, request: types_pb2.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> draft_pb2.DrafterDescription:
        engine, cost = self._engine, self._cost
        shape = engine.shape
        return draft_pb2.DrafterDescription(
            incarnation=self._incarnation,
            pid=os.getpid(),
            model=engine.config.drafter,
            fingerprint=engine.fingerprint,
            projection=engine.projection,
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden_size,
            block_size=shape.block_size,
            q_entries=engine.q_entries,
            context_length=engine.context_length,
            device=str(engine.device),
            dtype=engine.dtype,
            cost=codec.write_cost(cost.tokens, cost.contexts, cost.seconds, cost.source, borrowed=cost.borrowed)
            if cost
            else None,
            load=codec.write_load(
                engine.held, self._device.queued, self._device.busy_s, self._cohorts.wait_s, self._cohorts.waits
            ),
            calibrated=engine.calibrated,
            has_confidence=shape.has_confidence,
            page_size=engine.config.page_size,
            draining=self._draining.is_set(),
            metrics_port=self.metrics_port,
            warm=self._metrics.value("forward_seconds_count", kind="draft") > 0,
        )

    async def Session(
        self, request_iterator: AsyncIterator[Read[draft_pb2.DraftCommand]], context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[draft_pb2.DraftEvent, None]:
        session = DraftSession(
            engine=self._engine,
            device=self._device,
            cohorts=self._cohorts,
            metrics=self._metrics,
            incarnation=self._incarnation,
            draining=self._draining,
        )
        async with contextlib.aclosing(session.run(request_iterator)) as events:
            async for event in events:
                yield event
