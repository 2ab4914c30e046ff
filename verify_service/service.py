"""The Verify servicer: description of the verifier, and a control stream per coordinator."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

import grpc

from dspark.runtime.wire_limits import Read
from dspark.runtime.worker import Worker
from dspark.wire.v1 import types_pb2, verify_pb2, verify_pb2_grpc
from verify_service.control_stream import ControlStream
from verify_service.engine_core import EngineCore

NAME = "dspark.wire.v1.Verify"


class VerifyService(verify_pb2_grpc.VerifyServicer):
    """Serves the Describe and Control methods."""

    def __init__(self, worker: Worker[EngineCore]) -> None:
        self._worker = worker

    async def Describe(
        self, request: types_pb2.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> verify_pb2.VerifierDescription:
        engine = self._worker.engine
        return verify_pb2.VerifierDescription(
            model=engine.config.target,
            vocab_size=engine.target.vocab_size,
            context_length=engine.target.context_length,
            hidden_size=engine.feature_width,
            projection=engine.projection,
            attention_path=engine.attention_path,
            attention_reason=engine.attention_reason,
            feature_dtype=engine.config.feature_dtype if engine.projection else "",
            stop_token_ids=engine.target.stop_ids,
            **self._worker.described(),
        )

    async def Control(
        self,
        request_iterator: AsyncIterator[Read[verify_pb2.ControlDown]],
        context: grpc.aio.ServicerContext,
    ) -> AsyncGenerator[verify_pb2.ControlUp, None]:
        stream = ControlStream(self._worker)
        async with contextlib.aclosing(stream.run(request_iterator)) as events:
            async for event in events:
                yield event
