"""Health checks of processes, and announcements of workers to a coordinator.

A probe has a channel of its own and one check at a time. A refused connection is death within two
ticks; silence, and an address that cannot be reached, are judged by how long they have lasted.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import Mapping, Set
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.fleet import StartedProcess
from deploy.topology import ProcessRole
from dspark.client.errors import read_error
from dspark.client.status import CellStatus, read_status
from dspark.errors import ConfigError
from dspark.runtime.addresses import split_endpoint
from dspark.runtime.channel import auth_metadata, open_channel
from dspark.runtime.tls import Tls
from dspark.wire.v1 import control_pb2, control_pb2_grpc

LOOK_TIMEOUT_S = 2.0
ANNOUNCE_TIMEOUT_S = 10.0
STATUS_TIMEOUT_S = 5.0

# errors of this process, and of names, that say nothing of the process that was to be asked
UNASKED = (errno.EMFILE, errno.ENFILE, socket.EAI_AGAIN)

_ROLES = {ProcessRole.VERIFY: control_pb2.ROLE_VERIFY, ProcessRole.DRAFT: control_pb2.ROLE_DRAFT}


class Probe:
    """Checks one process. misses: refused checks in a row. heard: when it last answered, or when
    nobody could be asked: where names fail, no process is ended for it."""

    def __init__(self, process: StartedProcess, service: str, tls: Tls | None = None) -> None:
        self.process, self._service, self._tls = process, service, tls
        self._open()
        self.misses = 0
        self.heard = time.monotonic()

    def _open(self) -> None:
        self._channel = open_channel(self.process.endpoint, tls=self._tls)
        self._stub = health_pb2_grpc.HealthStub(self._channel)

    async def look(self) -> None:
        """Sends one health check. Any answer counts as life, even "not serving"."""
        request = health_pb2.HealthCheckRequest(service=self._service)
        try:
            await self._stub.Check(request, timeout=LOOK_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            # On a busy machine a call may fail while the process is well: only a refused connection
            # is death.
            lost = error.code() is grpc.StatusCode.UNAVAILABLE
            refuses = lost and await _refuses(self.process.endpoint)
            self.misses = self.misses + 1 if refuses else 0
            # nobody was asked, so nobody was silent; or a full process said so itself
            if refuses is None or error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                self.heard = time.monotonic()
            if lost:  # the next channel has the certificate of the present files
                former = self._channel
                with contextlib.suppress(ConfigError):  # they do not fit: the next look tries again
                    self._open()
                    await former.close()
        else:
            self.misses, self.heard = 0, time.monotonic()

    async def close(self) -> None:
        """Closes the channel."""
        await self._channel.close()


async def _refuses(endpoint: str) -> bool | None:
    """Whether every address of the endpoint refuses connections; neither silence is a refusal nor a
    way that is cut. None: nobody was asked, as this process has no descriptor left or nobody
    answers for names."""
    host, port = split_endpoint(endpoint)
    names = asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    try:
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            for _, _, _, _, address in await names:
                with contextlib.suppress(ConnectionRefusedError):
                    _, writer = await asyncio.open_connection(str(address[0]), port)
                    writer.close()
                    return False
    except OSError as error:
        return None if error.errno in UNASKED else False
    return True


class ControlAnnouncer:
    """Announces workers to a coordinator and reads its cell's status, as an operator of its Control
    service."""

    def __init__(self, token: str | None, tls: Tls | None = None) -> None:
        self._metadata, self._tls = auth_metadata(token), tls
        self._endpoint = ""
        self._channel: grpc.aio.Channel | None = None

    async def announce(
        self,
        coordinator: StartedProcess,
        workers: Mapping[str, tuple[ProcessRole, StartedProcess]],
        draining: Set[str],
    ) -> frozenset[str]:
        """Replaces the coordinator's set of workers; draining ones get nothing new. Returns those
        of them that no sequence needs any more."""
        message = control_pb2.AnnounceRequest(
            workers=[
                control_pb2.WorkerEndpoint(
                    role=_ROLES[role],
                    endpoint=started.endpoint,
                    incarnation=started.incarnation,
                    name=name,
                    draining=name in draining,
                )
                for name, (role, started) in sorted(workers.items())
            ]
        )
        reply = await self._asked(coordinator.endpoint, "Announce", message, ANNOUNCE_TIMEOUT_S)
        return frozenset(reply.idle)

    async def status(self, coordinator: StartedProcess) -> CellStatus:
        """The whole cell as the coordinator sees it."""
        message = control_pb2.GetStatusRequest()
        return read_status(
            await self._asked(coordinator.endpoint, "GetStatus", message, STATUS_TIMEOUT_S)
        )

    async def _asked(self, endpoint: str, method: str, message: Any, timeout_s: float) -> Any:
        if endpoint != self._endpoint:
            await self._hang_up()
        if self._channel is None:
            self._channel, self._endpoint = open_channel(endpoint, tls=self._tls), endpoint
        stub = control_pb2_grpc.ControlStub(self._channel)  # type: ignore[no-untyped-call]
        try:
            return await getattr(stub, method)(message, timeout=timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                await self._hang_up()  # the next channel has the certificate of the present files
            raise read_error(error, endpoint) from None

    async def _hang_up(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:  # a call beside this one may end first
            await channel.close(ANNOUNCE_TIMEOUT_S)
