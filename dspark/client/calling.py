"""The common part of both clients: the endpoints they call, and the request for an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar, Unpack

import grpc

from dspark.client.cell import whom_to_call
from dspark.client.errors import Cancelled
from dspark.client.fields import number_of
from dspark.client.request import SERVICE_CONFIG, Options, spelled_out, write_request
from dspark.client.resuming import AnswerCall
from dspark.errors import InvalidRequest
from dspark.runtime.channel import auth_metadata
from dspark.runtime.tls import Tls
from dspark.wire.v1 import control_pb2_grpc, generate_pb2, generate_pb2_grpc

LONGEST_S = 1e9  # gRPC takes a deadline that is much later for one that has passed

S = TypeVar("S", bound=AnswerCall)


class BaseClient(Generic[S]):
    """Client of one coordinator or front end. Without an endpoint, of the cell that this user
    started on this machine.

    `token`: secret of a client or an operator. `tls`: certificates to trust and to present; without
    it, plaintext.
    """

    _open: ClassVar[Callable[..., Any]]  # makes channels
    _stream: ClassVar[type[Any]]  # S

    def __init__(
        self, endpoint: str | None = None, *, token: str | None = None, tls: Tls | None = None
    ) -> None:
        # `coordinator` answers operators, `endpoint` clients
        self.endpoint, self.coordinator, token, tls = whom_to_call(endpoint, token, tls)
        self._metadata = auth_metadata(token)
        self._channel = self._open(self.endpoint, tls=tls, service_config=SERVICE_CONFIG)
        self._generation = generate_pb2_grpc.GenerationStub(self._channel)  # type: ignore[no-untyped-call]
        # Front ends do not serve operators' calls: these go to the coordinator.
        self._operator = (
            self._channel
            if self.coordinator == self.endpoint
            else self._open(self.coordinator, tls=tls)
        )
        self._control = control_pb2_grpc.ControlStub(self._operator)  # type: ignore[no-untyped-call]

    @spelled_out
    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        timeout: float | None = None,
        resume_s: float = 0.0,
        **options: Unpack[Options],
    ) -> S:
        """Streams the answer to a text or to token ids. `options`: see `Options`; `timeout`: the
        deadline in seconds.

        `resume_s`: for how many seconds to try to resume when the stream breaks because a process
        of the cell is lost. Needs the coordinator's journal, unless the parameters repeat the ids:
        temperature 0, or coupled with a seed.
        """
        request = write_request(prompt, options)
        if timeout is not None and not number_of("timeout", timeout) > 0:
            raise InvalidRequest("timeout", f"must be above 0, got {timeout:g}")
        if not number_of("resume_s", resume_s) >= 0:
            raise InvalidRequest("resume_s", f"must be at least 0, got {resume_s:g}")

        def ask(message: generate_pb2.GenerateRequest, left_s: float | None) -> Any:
            return self._begin(self._generation.Generate, message, left_s)

        made: S = self._stream(ask, self.endpoint, request, resume_s=resume_s, timeout=timeout)
        return made

    def _begin(self, method: Callable[..., Any], message: Any, timeout: float | None) -> Any:
        """Makes a call. Cancelled if this client is closed."""
        if timeout is not None:
            timeout = min(timeout, LONGEST_S)
        try:
            return method(message, timeout=timeout, metadata=self._metadata)
        except (ValueError, grpc.aio.UsageError):  # gRPC's words for a closed channel
            raise Cancelled("the client is closed") from None
