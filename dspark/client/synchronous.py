"""The blocking client.

A stream belongs to its call: leaving the loop, closing the stream or closing the client cancels the call, and the
server frees what it held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import grpc

from dspark.client.cell import find_cell
from dspark.client.errors import ServerError, read_error
from dspark.client.events import Completion, Event, Finished, ModelInfo, read_event, read_model_info
from dspark.client.request import SERVICE_CONFIG, Sampling, write_request
from dspark.runtime.channel import auth_metadata, sync_channel
from dspark.runtime.tls import Tls
from dspark.wire.v1 import control_pb2, control_pb2_grpc, generate_pb2, generate_pb2_grpc


class Stream(Iterator[Event]):
    """Events of one answer. Dropped or closed before its end, it cancels the call."""

    def __init__(self, call: Any, request_id: str, endpoint: str) -> None:
        self._call = call
        self._endpoint = endpoint
        self.request_id = request_id

    def __next__(self) -> Event:
        try:
            while (event := read_event(next(self._call))) is None:
                continue
            return event
        except grpc.RpcError as error:
            raise read_error(error, self._endpoint) from None

    def close(self) -> None:
        """Ends the request; harmless after its end."""
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Client:
    """Talks to one coordinator or front end. Without an endpoint, to the cell this user brought up on this machine.

    `token`: secret of a client or an operator. `tls`: whom to believe and what to show; without it, plaintext.
    """

    def __init__(self, endpoint: str | None = None, *, token: str | None = None, tls: Tls | None = None) -> None:
        if endpoint is None:
            cell = find_cell()
            endpoint, operator = cell.for_clients, cell.endpoint
            token, tls = token or cell.token(), tls or cell.tls()
        else:
            operator = endpoint
        self.endpoint = endpoint
        self._metadata = auth_metadata(token)
        self._channel = sync_channel(endpoint, tls=tls, service_config=SERVICE_CONFIG)
        self._generation = generate_pb2_grpc.GenerationStub(self._channel)  # type: ignore[no-untyped-call]
        # Front ends know no cell: operators' calls go to the coordinator.
        self._operator = self._channel if operator == endpoint else sync_channel(operator, tls=tls)
        self._control = control_pb2_grpc.ControlStub(self._operator)  # type: ignore[no-untyped-call]

    def generate(self, prompt: str | Sequence[int], *, timeout: float | None = None, **options: Any) -> Stream:
        """Streams the answer to a text or to token ids. `options`: see `Sampling`; `timeout`: the deadline."""
        request = write_request(prompt, Sampling(**options))
        call = self._generation.Generate(request, timeout=timeout, metadata=self._metadata)
        return Stream(call, request.request_id, self.endpoint)

    def complete(self, prompt: str | Sequence[int], *, timeout: float | None = None, **options: Any) -> Completion:
        """The whole answer at once."""
        with self.generate(prompt, timeout=timeout, **options) as stream:
            events = list(stream)
        if not events or not isinstance(events[-1], Finished):
            raise ServerError(f"{self.endpoint} ended the answer without saying why")
        return Completion.of(events)

    def abort(self, request_ids: Iterable[str], *, timeout: float = 5.0) -> tuple[str, ...]:
        """Ends running requests by id; returns those that were running."""
        message = generate_pb2.AbortRequest(request_ids=list(request_ids))
        return tuple(self._once(self._generation.Abort, message, timeout).aborted)

    def model_info(self, *, timeout: float = 5.0) -> ModelInfo:
        """What is served."""
        return read_model_info(self._once(self._generation.GetModelInfo, generate_pb2.GetModelInfoRequest(), timeout))

    def status(self, *, timeout: float = 5.0) -> control_pb2.GetStatusReply:
        """The whole cell as its coordinator sees it; needs the operator's token where there is one."""
        reply = self._once(self._control.GetStatus, control_pb2.GetStatusRequest(), timeout)
        assert isinstance(reply, control_pb2.GetStatusReply)
        return reply

    def close(self) -> None:
        """Ends every running stream."""
        self._channel.close()
        self._operator.close()

    def _once(self, method: Callable[..., Any], message: Any, timeout: float) -> Any:
        try:
            return method(message, timeout=timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise read_error(error, self.endpoint) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
