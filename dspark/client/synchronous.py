"""The blocking client.

Leaving the loop over a stream, closing the stream or closing the client cancels the call, and the
server frees what the request held.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, Unpack

import grpc

from dspark.client.calling import BaseClient
from dspark.client.errors import read_error
from dspark.client.events import Completion, Event, ModelInfo, read_event
from dspark.client.explanation import EndedAnswer, RoundExplanation
from dspark.client.fields import copied, count_of, text_of, texts_of
from dspark.client.request import Options, spelled_out
from dspark.client.resuming import AnswerCall
from dspark.client.status import CellStatus, read_status
from dspark.runtime.channel import sync_channel
from dspark.wire.v1 import control_pb2, generate_pb2


class Stream(AnswerCall, Iterator[Event]):
    """The events of one request, in order."""

    def __next__(self) -> Event:
        while True:
            try:
                while (event := read_event(next(self._call))) is None:
                    continue
            except StopIteration:
                self._check_end()
                raise
            except grpc.RpcError as error:
                time.sleep(self._pause(read_error(error, self._endpoint)))
                self._resume()
                continue
            self._note(event)
            return event

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client(BaseClient[Stream]):
    __doc__ = BaseClient.__doc__

    _open, _stream = staticmethod(sync_channel), Stream

    @spelled_out
    def complete(
        self,
        prompt: str | Sequence[int],
        *,
        timeout: float | None = None,
        resume_s: float = 0.0,
        **options: Unpack[Options],
    ) -> Completion:
        """Waits for the whole answer and returns it. Arguments as for `generate`."""
        with self.generate(prompt, timeout=timeout, resume_s=resume_s, **options) as stream:
            events = list(stream)
        return Completion.of(events)

    def abort(self, request_ids: str | Iterable[str], *, timeout: float = 5.0) -> tuple[str, ...]:
        """Ends running requests by id; returns those that were running."""
        message = generate_pb2.AbortRequest(request_ids=texts_of("request_ids", request_ids))
        return tuple(self._once(self._generation.Abort, message, timeout).aborted)

    def model_info(self, *, timeout: float = 5.0) -> ModelInfo:
        """The model and drafter that the cell serves, and its limits."""
        message = generate_pb2.GetModelInfoRequest()
        return copied(ModelInfo, self._once(self._generation.GetModelInfo, message, timeout))

    def status(self, *, timeout: float = 5.0) -> CellStatus:
        """The state of the whole cell, from its coordinator. Needs the operator's token if the cell
        has one."""
        return read_status(
            self._once(
                self._control.GetStatus, control_pb2.GetStatusRequest(), timeout, self.coordinator
            )
        )

    def explain(
        self, request_id: str, *, rounds: int = 0, timeout: float | None = None
    ) -> Iterator[RoundExplanation]:
        """Yields the rounds of a running request as they are settled, at most `rounds` (0: all).
        Needs the operator's token if the cell has one."""
        message = control_pb2.ExplainRequest(
            request_id=text_of("request_id", request_id), rounds=count_of("rounds", rounds)
        )
        call = self._begin(self._control.Explain, message, timeout)
        try:
            for told in call:
                yield copied(RoundExplanation, told)
        except grpc.RpcError as error:
            raise read_error(error, self.coordinator) from None
        finally:
            call.cancel()

    def ended(
        self, request_id: str = "", *, most: int = 0, timeout: float = 5.0
    ) -> tuple[EndedAnswer, ...]:
        """Answers that ended: those of one request, or else the newest, at most `most` (0: all that
        are kept). Needs the operator's token if the cell has one."""
        message = control_pb2.GetEndedRequest(
            request_id=text_of("request_id", request_id), most=count_of("most", most)
        )
        reply = self._once(self._control.GetEnded, message, timeout, self.coordinator)
        return tuple(copied(EndedAnswer, one) for one in reply.answers)

    def close(self) -> None:
        """Closes the connections, which ends every running stream."""
        self._channel.close()
        self._operator.close()

    def _once(self, method: Callable[..., Any], message: Any, timeout: float, at: str = "") -> Any:
        try:
            return self._begin(method, message, timeout)
        except grpc.RpcError as error:
            raise read_error(error, at or self.endpoint) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
