"""The asyncio client, with the methods of the blocking one. Use it on the event loop it was made
on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, Unpack

import grpc

from dspark.client.calling import BaseClient
from dspark.client.errors import Cancelled, read_error
from dspark.client.events import Completion, Event, ModelInfo, read_event
from dspark.client.explanation import EndedAnswer, RoundExplanation
from dspark.client.fields import copied, count_of, text_of, texts_of
from dspark.client.request import Options, spelled_out
from dspark.client.resuming import AnswerCall
from dspark.client.status import CellStatus, read_status
from dspark.errors import DsparkError
from dspark.runtime.channel import open_channel
from dspark.wire.v1 import control_pb2, generate_pb2


@contextmanager
def _errors_of(endpoint: str) -> Iterator[None]:
    """Raises the client's errors for those of a call. A call that another task closed is
    `Cancelled`; only a task that is cancelled itself sees asyncio's CancelledError."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise read_error(error, endpoint) from None
    except asyncio.CancelledError:
        if (task := asyncio.current_task()) is None or task.cancelling():
            raise
        raise Cancelled("the call was cancelled") from None


class AsyncStream(AnswerCall, AsyncIterator[Event]):
    """The events of one request, in order."""

    async def __anext__(self) -> Event:
        while True:
            try:
                with _errors_of(self._endpoint):
                    while (event := read_event(await anext(aiter(self._call)))) is None:
                        continue
            except StopAsyncIteration:
                self._check_end()
                raise
            except DsparkError as error:
                await asyncio.sleep(self._pause(error))
                self._resume()
                continue
            self._note(event)
            return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class AsyncClient(BaseClient[AsyncStream]):
    __doc__ = BaseClient.__doc__

    _open, _stream = staticmethod(open_channel), AsyncStream

    @spelled_out
    async def complete(
        self,
        prompt: str | Sequence[int],
        *,
        timeout: float | None = None,
        resume_s: float = 0.0,
        **options: Unpack[Options],
    ) -> Completion:
        """Waits for the whole answer and returns it. Arguments as for `generate`."""
        async with self.generate(prompt, timeout=timeout, resume_s=resume_s, **options) as stream:
            events = [event async for event in stream]
        return Completion.of(events)

    async def abort(
        self, request_ids: str | Iterable[str], *, timeout: float = 5.0
    ) -> tuple[str, ...]:
        """Ends running requests by id; returns those that were running."""
        message = generate_pb2.AbortRequest(request_ids=texts_of("request_ids", request_ids))
        return tuple((await self._once(self._generation.Abort, message, timeout)).aborted)

    async def model_info(self, *, timeout: float = 5.0) -> ModelInfo:
        """The model and drafter that the cell serves, and its limits."""
        message = generate_pb2.GetModelInfoRequest()
        reply = await self._once(self._generation.GetModelInfo, message, timeout)
        return copied(ModelInfo, reply)

    async def status(self, *, timeout: float = 5.0) -> CellStatus:
        """The state of the whole cell, from its coordinator. Needs the operator's token if the cell
        has one."""
        return read_status(
            await self._once(
                self._control.GetStatus, control_pb2.GetStatusRequest(), timeout, self.coordinator
            )
        )

    async def explain(
        self, request_id: str, *, rounds: int = 0, timeout: float | None = None
    ) -> AsyncIterator[RoundExplanation]:
        """Yields the rounds of a running request as they are settled, at most `rounds` (0: all).
        Needs the operator's token if the cell has one."""
        message = control_pb2.ExplainRequest(
            request_id=text_of("request_id", request_id), rounds=count_of("rounds", rounds)
        )
        call = self._begin(self._control.Explain, message, timeout)
        try:
            with _errors_of(self.coordinator):
                async for told in call:
                    yield copied(RoundExplanation, told)
        finally:
            call.cancel()

    async def ended(
        self, request_id: str = "", *, most: int = 0, timeout: float = 5.0
    ) -> tuple[EndedAnswer, ...]:
        """Answers that ended: those of one request, or else the newest, at most `most` (0: all that
        are kept). Needs the operator's token if the cell has one."""
        message = control_pb2.GetEndedRequest(
            request_id=text_of("request_id", request_id), most=count_of("most", most)
        )
        reply = await self._once(self._control.GetEnded, message, timeout, self.coordinator)
        return tuple(copied(EndedAnswer, one) for one in reply.answers)

    async def close(self) -> None:
        """Closes the connections, which ends every running stream."""
        await self._channel.close()
        await self._operator.close()

    async def _once(
        self, method: Callable[..., Any], message: Any, timeout: float, at: str = ""
    ) -> Any:
        with _errors_of(at or self.endpoint):
            return await self._begin(method, message, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
