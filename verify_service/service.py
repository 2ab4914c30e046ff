"""The Verify servicer: what this verifier is, and one session per coordinator."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator

import grpc

from dspark.runtime.cost_store import Curve
from dspark.runtime.device_worker import DeviceWorker
from dspark.runtime.draining import Draining
from dspark.runtime.telemetry import Metrics
from dspark.runtime.wire_limits import Read
from dspark.wire import codec
from dspark.wire.v1 import types_pb2, verify_pb2, verify_pb2_grpc
from verify_service.config import VerifyConfig
from verify_service.feature_push import FeaturePush
from verify_service.intake import Intake
from verify_service.interface import Engine
from verify_service.session import VerifySession

NAME = "dspark.wire.v1.Verify"


class VerifyService(verify_pb2_grpc.VerifyServicer):
    """Answers Describe and Session."""

    def __init__(
        self,
        *,
        engine: Engine,
        device: DeviceWorker,
        push: FeaturePush,
        metrics: Metrics,
        incarnation: int,
        cost: Curve | None,
    ) -> None:
        self._engine = engine
        self._device = device
        self._push = push
        self._metrics = metrics
        self._incarnation = incarnation
        self._cost = cost
        self._draining = Draining()
        self._intake = Intake(engine, device, metrics)
        self.metrics_port = 0  # known once it listens

    def drain(self, grace_s: float) -> None:
        """Takes no new sequences from now on, and tells every coordinator so."""
        self._draining.begin(grace_s)

    async def Describe(
        self, request: types_pb2.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> verify_pb2.VerifierDescription:
        engine = self._engine
        projection = engine.projection
        cost = self._cost
        return verify_pb2.VerifierDescription(
            incarnation=self._incarnation,
            pid=os.getpid(),
            model=_name(engine.config),
            fingerprint=engine.fingerprint,
            vocab_size=engine.target.vocab_size,
            context_length=engine.target.context_length,
            hidden_size=engine.feature_width,
            projection=projection.fingerprint if projection is not None else "",
            page_size=engine.config.page_size,
            attention_path=engine.attention_path,
            device=str(engine.device),
            dtype=engine.dtype,
            cost=codec.write_cost(
                cost.tokens,
                cost.contexts,
                cost.seconds,
                cost.source,
                sequence_seconds=cost.sequence_seconds,
                tokens_per_sequence=cost.tokens_per_sequence,
                borrowed=cost.borrowed,
            )
            if cost
            else None,
            load=codec.write_load(engine.held, self._device.queued, self._device.busy_s),
            feature_dtype=engine.config.feature_dtype if projection is not None else "",
            stop_token_ids=engine.target.stop_ids,
            draining=self._draining.is_set(),
            metrics_port=self.metrics_port,
            warm=self._metrics.value("forward_seconds_count", kind="verify") > 0,
        )

    async def Session(
        self, request_iterator: AsyncIterator[Read[verify_pb2.VerifyCommand]], context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[verify_pb2.VerifyEvent, None]:
        session = VerifySession(
            engine=self._engine,
            device=self._device,
            push=self._push,
            metrics=self._metrics,
            incarnation=self._incarnation,
            draining=self._draining,
            intake=self._intake,
        )
        async with contextlib.aclosing(session.run(request_iterator)) as events:
            async for event in events:
                yield event


def _name(config: VerifyConfig) -> str:
    """The target's name, and what a benchmark has done to it."""
    if config.force_acceptance is None:
        return config.target
    return f"{config.target} (BENCHMARK: ACCEPTANCE FORCED TO {config.force_acceptance:g}, NOT THE TARGET'S TEXT)"
