"""A coordinator of this project as an endpoint, through its public gRPC service."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import AsyncIterator

import grpc

from dspark.client import AsyncClient, DsparkError
from dspark.client.errors import ServerError, read_error
from dspark.client.events import Chunk, Finished, ModelInfo, read_event
from dspark.client.request import SERVICE_CONFIG, Options, write_request
from dspark.loadgen import prometheus
from dspark.loadgen.answer import StreamPiece
from dspark.loadgen.prompts import Question
from dspark.runtime.channel import auth_metadata, open_channel
from dspark.runtime.tls import Tls
from dspark.wire.v1 import generate_pb2_grpc

FRAME = 5  # bytes gRPC puts before each message
SENT = re.compile(r'dspark_bytes_total\{(?=.*direction="sent").*kind="([^"]*)"')


class GrpcEndpoint:
    """Streams answers of a coordinator; only for the event loop that it is created on."""

    counted_by = "ids"

    def __init__(
        self, endpoint: str, options: Options, *, token: str | None = None, tls: Tls | None = None
    ) -> None:
        self.name = f"dspark {options.get('policy') or ''}".strip()
        self._endpoint = endpoint
        self._token, self._tls = token, tls
        self._options = options
        self._metadata = auth_metadata(token)
        # The plain stub, not the client: the sizes of messages are part of what is measured.
        self._channel = open_channel(endpoint, tls=tls, service_config=SERVICE_CONFIG)
        self._generation = generate_pb2_grpc.GenerationStub(self._channel)  # type: ignore[no-untyped-call]

    async def stream(self, question: Question, number: int) -> AsyncIterator[StreamPiece]:
        message = write_request(question.prompt, question.options(self._options, number))
        call = self._generation.Generate(message, metadata=self._metadata)
        whole = False
        try:
            async for reply in call:
                event, size = read_event(reply), reply.ByteSize() + FRAME
                if isinstance(event, Chunk):
                    yield StreamPiece(len(event.token_ids), size, event.token_ids)
                elif isinstance(event, Finished):
                    whole = True
                    yield StreamPiece(0, size, (), event.speculation)
        except grpc.aio.AioRpcError as error:
            raise read_error(error, self._endpoint) from None
        finally:
            call.cancel()
        if not whole:
            raise ServerError(f"{self._endpoint} ended the answer without saying why")

    async def counters(self) -> dict[str, float]:
        """Payload bytes sent inside the cell, by kind, over all its processes that publish
        metrics."""
        found = defaultdict[str, float](float)
        with contextlib.suppress(DsparkError):
            # a secured or older cell has none: the run is measured without them
            async with AsyncClient(self._endpoint, token=self._token, tls=self._tls) as client:
                processes = (await client.status()).processes
            for process in filter(lambda each: each.metrics_port, processes):
                host = process.endpoint.rsplit(":", 1)[0] or "127.0.0.1"
                page = await prometheus.scrape(f"http://{host}:{process.metrics_port}/metrics")
                for sample, value in page.items():
                    if sent := SENT.match(sample):
                        found[f"bytes_{sent[1]}"] += value
        return dict(found)

    async def model_info(self) -> ModelInfo:
        """The served model: its context, vocabulary and tokenizer."""
        async with AsyncClient(self._endpoint, token=self._token, tls=self._tls) as client:
            return await client.model_info()

    async def close(self) -> None:
        await self._channel.close()
