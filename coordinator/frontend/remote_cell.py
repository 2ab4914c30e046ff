"""A cell in another process: requests are sent in batches, and commits are received in batches.

Whenever the stream ends it is opened again, after growing pauses. Requests that were open end with
UNAVAILABLE and the offset that their answer has reached. No request is sent twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import grpc
import structlog

from coordinator.answers.output_queue import OutputSink
from coordinator.cells import cell_wire
from coordinator.cells.cell import CellTerms, SubmitRequest
from coordinator.clock import until
from coordinator.frontend.link import CoordinatorConnection, RemoteHandle
from dspark.errors import ConfigError, DsparkError, Overloaded, PeerError, Unavailable
from dspark.runtime.aio_call import ending_as_told
from dspark.runtime.channel import FRONT_WATCH_MS, auth_metadata, open_channel
from dspark.runtime.security import Security
from dspark.runtime.telemetry import Metrics
from dspark.wire.v1 import frontend_pb2, frontend_pb2_grpc

log = structlog.get_logger("dspark.frontend")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
RETRY_S = 0.5  # retry hint for clients when this front end is full
ABORT_S = 5.0  # longest wait for the coordinator's reply to an abort


class RemoteCell:
    """The cell of the coordinator at `endpoint`. max_calls: open requests at one time. hello: sent
    at every attachment. on_change: called with whether requests are possible when that changes."""

    def __init__(
        self,
        endpoint: str,
        security: Security,
        *,
        max_calls: int,
        hello: frontend_pb2.FrontendHello,
        on_change: Callable[[bool], None],
        metrics: Metrics,
    ) -> None:
        self._endpoint, self._security, self._max_calls = endpoint, security, max_calls
        self._hello, self._on_change, self._metrics = hello, on_change, metrics
        self._closed = f"the coordinator at {endpoint} is not attached"
        self._detached = ""  # why, as the log was told last
        self._terms: CellTerms | None = None
        self._link: CoordinatorConnection | None = None
        self.draining = False
        self._running: asyncio.Task[None] | None = None

    # Requests.

    def terms(self) -> CellTerms:
        if self._terms is None:
            raise Unavailable(self._closed)
        return self._terms

    def check_capacity(self, tenant: str = "", resumed: str = "") -> None:
        if self.draining:
            raise self._refuse(
                "draining", Unavailable("the front end is draining; try another one")
            )
        if self._terms is None or self._link is None:
            raise self._refuse("no_cell", Unavailable(self._closed))
        if self._link.requests >= self._max_calls:
            problem = f"{self._link.requests} requests are open at this front end"
            raise self._refuse("frontend_full", Overloaded(problem, RETRY_S))

    def submit(self, order: SubmitRequest, sink: OutputSink) -> RemoteHandle:
        self.check_capacity()
        assert self._link is not None
        return self._link.submit(order, sink)

    async def abort(self, request_ids: Sequence[str]) -> list[str]:
        if self._link is None:
            raise Unavailable(self._closed)
        try:
            async with asyncio.timeout(ABORT_S):
                return await self._link.abort(request_ids)
        except TimeoutError:
            raise Unavailable(f"the coordinator has not answered for {ABORT_S:g} s") from None

    # Attachment, and its end.

    def start(self) -> None:
        """Begins to attach, and attaches again after every end until `close`."""
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def attached(self, longest_s: float) -> None:
        """Waits until the coordinator has sent its terms, for `longest_s` seconds at most."""
        await until(lambda: self._terms is not None, longest_s)

    async def emptied(self, longest_s: float) -> None:
        await until(lambda: self._link is None or not self._link.requests, longest_s)

    def cut_all(self) -> None:
        if self._link is not None:
            self._link.cut_all("the front end stops")

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        pause = FIRST_PAUSE_S
        while True:
            if await self._attach():
                pause = FIRST_PAUSE_S
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _attach(self) -> bool:
        """Runs one stream from hello to its end; returns whether any batch was understood."""
        heard, why = False, "the stream ended"
        link = CoordinatorConnection(self._hello, asyncio.get_running_loop(), self._metrics)
        channel: grpc.aio.Channel | None = None
        try:
            channel = open_channel(self._endpoint, tls=self._security.tls, watch_ms=FRONT_WATCH_MS)
            stub = frontend_pb2_grpc.CellStub(channel)  # type: ignore[no-untyped-call]
            async for batch in ending_as_told(
                stub.Attach(link, metadata=auth_metadata(self._security.token))
            ):
                self._link = link
                self._metrics.cell_batches.labels(direction="in").inc()
                if batch.HasField("terms"):
                    closed = batch.terms.closed
                    self._set_terms(None if closed else cell_wire.read_terms(batch.terms), closed)
                link.heard(batch)
                heard = True
        except grpc.aio.AioRpcError as error:
            why = f"{error.code().name.lower()}: {error.details()}"
        except PeerError as error:
            why = f"it broke the protocol: {error}"
            log.error("frontend.protocol", coordinator=self._endpoint, problem=str(error))
        except ConfigError as error:  # certificates, in the middle of their renewal
            why = str(error)
        except Exception as error:  # a bug: requests end, and the cell is attached again
            why = "a bug in the front end"
            log.error("frontend.failed", coordinator=self._endpoint, exc_info=error)
        finally:
            self._link = None
            self._set_terms(None, f"the coordinator at {self._endpoint} is not attached ({why})")
            link.cut_all("the coordinator is gone")
            if channel is not None:
                await channel.close()
        if heard or why != self._detached:
            log.warning("frontend.detached", coordinator=self._endpoint, why=why)
        self._detached = why
        return heard

    def _set_terms(self, terms: CellTerms | None, closed: str) -> None:
        was, self._terms, self._closed = self._ready, terms, closed
        if was != self._ready:
            self._on_change(self._ready)

    @property
    def _ready(self) -> bool:
        return self._terms is not None and self._terms.ready

    def _refuse(self, reason: str, error: DsparkError) -> DsparkError:
        self._metrics.admission_rejections.labels(reason=reason).inc()
        return error
