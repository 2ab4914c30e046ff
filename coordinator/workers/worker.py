"""The connection to one announced worker: requests its description, and reconnects when it is lost.

Knows nothing of lanes; `join` decides whether the worker is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import structlog

from coordinator.config import CoordinatorConfig
from coordinator.workers.breaker import CircuitBreaker
from coordinator.workers.clients import WorkerPort
from dspark.errors import ConfigError
from dspark.runtime.channel import WORKER_WATCH_MS, auth_metadata, open_channel
from dspark.runtime.security import Security
from dspark.runtime.telemetry import Metrics
from dspark.wire.v1 import draft_pb2, draft_pb2_grpc, types_pb2, verify_pb2, verify_pb2_grpc

log = structlog.get_logger("dspark.worker")

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
WHY_S = 0.5  # longest time for the channel to say why there is no connection
# Longest wait of a channel that closes for a description that is asked for over it: more than
# `DESCRIBE_S` of a status, whose deadline has to end it first.
ASKED_S = 2.0
LOOK_S = 0.1  # how often the connection checks whether a worker that is held off is needed

Description = verify_pb2.VerifierDescription | draft_pb2.DrafterDescription


class WorkerRole(enum.Enum):
    VERIFY = "verify"
    DRAFT = "draft"


_STUBS: dict[WorkerRole, Any] = {
    WorkerRole.VERIFY: verify_pb2_grpc.VerifyStub,
    WorkerRole.DRAFT: draft_pb2_grpc.DraftStub,
}
_SAID = {WorkerRole.VERIFY: "verifier", WorkerRole.DRAFT: "drafter"}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a worker was announced, and which process is expected there; incarnation 0 accepts
    any."""

    role: WorkerRole
    endpoint: str
    incarnation: int
    name: str


class WorkerConnection:
    """Keeps one address connected until it is closed."""

    def __init__(
        self,
        address: Address,
        join: Callable[[WorkerConnection, Description, grpc.aio.Channel], Awaitable[str | None]],
        alone: Callable[[WorkerConnection], bool],
        config: CoordinatorConfig,
        security: Security,
        metrics: Metrics,
    ) -> None:
        """alone: whether it is the last worker of its role."""
        self.address = address
        self.state = "connecting"
        self.detail = ""
        self.leaving = False  # it announced its end, or was retired
        # it reported that it served before, so it needs no warm-up
        self.has_run = False
        self.settled = False  # the first attempt to connect succeeded or failed
        self.port: WorkerPort | None = None
        self._held: WorkerPort | None = None  # the last one, whose stream may still be ending
        self._join, self._alone, self._metrics = join, alone, metrics
        self._describe_s, self._security = config.describe_deadline_s, security
        self._breaker = CircuitBreaker(config.flap_limit)
        self._channel = self._open()
        self._released = asyncio.Event()
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    @property
    def warm(self) -> bool:
        """Whether its first requests have run."""
        return self.port is not None and self.state != "warming"

    def hold(self, port: WorkerPort) -> None:
        """Keeps the client of a worker that connected, and is warming now."""
        self.port = self._held = port
        self.state, self.detail, self.leaving = "warming", "", False
        self._released.clear()

    def serves(self) -> None:
        """Marks the worker as serving: its first requests have run."""
        if self.state == "warming":
            self.state, self.detail = "serving", ""

    def lost(self, why: str) -> None:
        """Marks the worker as lost: its stream ended."""
        self.port = None
        self.state, self.detail = "lost", why
        if not self.leaving and self._breaker.lost(time.monotonic()):
            self._metrics.breakers_opened.labels(pool=self.address.role.value).inc()
            log.warning("worker.held_off", worker=self.address.name, seconds=self._held_off_s)
        self._released.set()

    def drop(self, why: str) -> None:
        """Ends its stream now, if there is one."""
        if self.port is not None:
            self.port.close(why)

    async def describe(self, timeout_s: float, *, wait: bool = True) -> Description:
        """Requests the worker's description; raises grpc.aio.AioRpcError. wait: for a connection,
        where there is none; else the error says why there is none."""
        said: Description = await _STUBS[self.address.role](self._channel).Describe(
            types_pb2.DescribeRequest(),
            timeout=timeout_s,
            wait_for_ready=wait,
            metadata=auth_metadata(self._security.token),
        )
        return said

    def retire(self) -> None:
        """Stops reconnecting; the present connection stays."""
        self.leaving = True
        self._keeping.cancel()

    async def close(self, why: str) -> None:
        self.retire()
        self.drop(why)
        with contextlib.suppress(asyncio.CancelledError):
            await self._keeping
        if self._held is not None:
            await self._held.ended()
        await self._channel.close(ASKED_S)

    def _open(self) -> grpc.aio.Channel:
        return open_channel(self.address.endpoint, tls=self._security.tls, watch_ms=WORKER_WATCH_MS)

    async def _show_present_files(self) -> None:
        """Opens another channel under TLS: one shows the certificate it was opened with, which may
        have ended, and believes the authority of then."""
        if self._security.tls is not None:
            with contextlib.suppress(ConfigError):  # they do not fit: the next try
                former, self._channel = self._channel, self._open()
                await former.close(ASKED_S)

    async def _keep(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            problem = await self._connect()
            self.settled = True
            if problem is None:
                await self._released.wait()
                pause_s = FIRST_PAUSE_S
            elif problem != self.detail:
                self.detail = problem
                log.warning("worker.not_connected", worker=self.address.name, why=problem)
            await self._hold_off()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    @property
    def _held_off_s(self) -> float:
        return round(self._breaker.left_s(time.monotonic()), 1)

    async def _hold_off(self) -> None:
        """Waits while the breaker is open and another worker of its role is connected."""
        while self._held_off_s and not self._alone(self):
            self.detail = f"lost too often; tried again in {self._held_off_s:g} s"
            await asyncio.sleep(min(self._held_off_s, LOOK_S))

    async def _connect(self) -> str | None:
        """Connects and joins the worker: returns None, or why not, with its stream closed."""
        try:
            try:
                said = await self.describe(self._describe_s)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise
                said = await self.describe(WHY_S, wait=False)
        except grpc.aio.AioRpcError as error:
            await self._show_present_files()
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return (
                    f"{self.address.endpoint}: what answers there is no {_SAID[self.address.role]}"
                )
            return f"{self.address.endpoint}: {error.code().name.lower()}: {error.details()}"
        self.state = "draining" if said.draining else "connecting"
        if said.draining:
            return "draining"
        wanted = self.address.incarnation
        if wanted not in (0, said.incarnation):
            return (
                f"another process answers at {self.address.endpoint}: incarnation "
                f"{said.incarnation}, not {wanted}"
            )
        try:
            problem = await self._join(self, said, self._channel)
        # a bug, or an unforeseen description: this worker stays out, the others serve
        except Exception as error:
            log.error("worker.not_understood", worker=self.address.name, exc_info=error)
            problem = "what it says about itself is not understood; see the coordinator's log"
        if problem is not None:
            self.drop(problem)
        return problem
