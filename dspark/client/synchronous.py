"""The blocking client.

A stream belongs to its call: leaving the loop, closing the stream or closing the client cancels the call, and the
server frees what it held.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, Unpack

import grpc

from dspark.client.cell import whom_to_call
from dspark.client.errors import ServerError, read_error
from dspark.client.events import Completion, Event, Finished, ModelInfo, read_event, read_model_info
from dspark.client.explanation import EndedAnswer, RoundExplanation, read_ended, read_explanation
from dspark.client.fields import texts_of
from dspark.client.request import SERVICE_CONFIG, Options, Sampling, spelled_out, write_request
from dspark.client.resuming import AnswerCall, Resuming
from dspark.client.status import CellStatus, read_status
from dspark.runtime.channel import auth_metadata, sync_channel
from dspark.runtime.tls import Tls
from dspark.wire.v1 import control_pb2, control_pb2_grpc, generate_pb2, generate_pb2_grpc


class Stream(AnswerCall, Iterator[Event]):
    """Events of one answer."""

    def __next__(self) -> Event:
        while True:
            try:
                while (event := read_event(next(self._call))) is None:
                    continue
            except grpc.RpcError as error:
                time.sleep(self._pause(read_error(error, self._endpoint)))
                self._call = self._ask(self._resuming.again(), self._resuming.left_s)
                continue
            self._resuming.note(event)
            return event

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client:
    """Talks to one coordinator or front end. Without an endpoint, to the cell this user brought up on this machine.

    `token`: secret of a client or an operator. `tls`: whom to believe and what to show; without it, plaintext.
    """

    def __init__(self, endpoint: str | None = None, *, token: str | None = None, tls: Tls | None = None) -> None:
        self.endpoint, operator, token, tls = whom_to_call(endpoint, token, tls)
        self._metadata = auth_metadata(token)
        self._channel = sync_channel(self.endpoint, tls=tls, service_config=SERVICE_CONFIG)
        self._generation = generate_pb2_grpc.GenerationStub(self._channel)  # type: ignore[no-untyped-call]
        # Front ends know no cell: operators' calls go to the coordinator.
        self._operator = self._channel if operator == self.endpoint else sync_channel(operator, tls=tls)
        self._control = control_pb2_grpc.ControlStub(self._operator)  # type: ignore[no-untyped-call]

    @spelled_out
    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        timeout: float | None = None,
        resume_s: float = 0.0,
        **options: Unpack[Options],
    ) -> Stream:
        """Streams the answer to a text or to token ids. `options`: see `Sampling`; `timeout`: the deadline.

        `resume_s`: how many seconds to go on asking for the rest when the stream breaks because a process of the cell
        is gone. Needs the coordinator's journal, unless the parameters repeat the ids: temperature 0, or coupled with a
        seed.
        """
        request = write_request(prompt, Sampling(**options))

        def ask(message: generate_pb2.GenerateRequest, left_s: float | None) -> Any:
            return self._generation.Generate(message, timeout=left_s, metadata=self._metadata)

        return Stream(ask, request, self.endpoint, Resuming(request, resume_s=resume_s, timeout=timeout))

    @spelled_out
    def complete(
        self,
        prompt: str | Sequence[int],
        *,
        timeout: float | None = None,
        resume_s: float = 0.0,
        **options: Unpack[Options],
    ) -> Completion:
        """The whole answer at once."""
        with self.generate(prompt, timeout=timeout, resume_s=resume_s, **options) as stream:
            events = list(stream)
        if not events or not isinstance(events[-1], Finished):
            raise ServerError(f"{self.endpoint} ended the answer without saying why")
        return Completion.of(events)

    def abort(self, request_ids: str | Iterable[str], *, timeout: float = 5.0) -> tuple[str, ...]:
        """Ends running requests by id; returns those that were running."""
        message = generate_pb2.AbortRequest(request_ids=texts_of("request_ids", request_ids))
        return tuple(self._once(self._generation.Abort, message, timeout).aborted)

    def model_info(self, *, timeout: float = 5.0) -> ModelInfo:
        """What is served."""
        return read_model_info(self._once(self._generation.GetModelInfo, generate_pb2.GetModelInfoRequest(), timeout))

    def status(self, *, timeout: float = 5.0) -> CellStatus:
        """The whole cell as its coordinator sees it; needs the operator's token where there is one."""
        return read_status(self._once(self._control.GetStatus, control_pb2.GetStatusRequest(), timeout))

    def explain(self, request_id: str, *, rounds: int = 0, timeout: float | None = None) -> Iterator[RoundExplanation]:
        """The rounds of a running request as they are settled, at most so many; needs the operator's token where there
        is one."""
        message = control_pb2.ExplainRequest(request_id=request_id, rounds=rounds)
        call = self._control.Explain(message, timeout=timeout, metadata=self._metadata)
        try:
            for told in call:
                yield read_explanation(told)
        except grpc.RpcError as error:
            raise read_error(error, self.endpoint) from None
        finally:
            call.cancel()

    def ended(self, request_id: str = "", *, most: int = 0, timeout: float = 5.0) -> tuple[EndedAnswer, ...]:
        """The last answers that ended: of one request, or the newest of all, at most so many (0: all that are kept).
        Needs the operator's token where there is one."""
        message = control_pb2.GetEndedRequest(request_id=request_id, most=most)
        return read_ended(self._once(self._control.GetEnded, message, timeout))

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

    def __exit__(self, *_: object) -> None:
        self.close()
