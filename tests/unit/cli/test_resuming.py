"""When a client goes on with a broken stream, when it gives up, and what it asks for."""

from types import SimpleNamespace
from typing import Any, Self

import grpc
import pytest

from dspark.client import Cancelled, asynchronous, synchronous
from dspark.client.asynchronous import AsyncStream
from dspark.client.resuming import LONGEST_PAUSE_S
from dspark.client.synchronous import Stream
from dspark.errors import DsparkError, Overloaded, Unavailable
from dspark.wire.v1 import generate_pb2

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED


class Broken(grpc.RpcError):
    """A call that breaks after its events."""

    def __init__(
        self, *events: generate_pb2.GenerateResponse, code: grpc.StatusCode = UNAVAILABLE
    ) -> None:
        self._events, self._code = iter(events), code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "gone"

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("retry-after-ms", "300"),)

    def __next__(self) -> generate_pb2.GenerateResponse:
        for event in self._events:
            return event
        raise self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> None:
        none = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(self.code(), none, none, "gone")

    def cancel(self) -> None:
        """It has ended."""


class Asked:
    """Gives these calls one after the other, then calls that break at once. Its clock is that of
    the pauses between them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *calls: Broken) -> None:
        self._calls = iter(calls)
        self.messages: list[generate_pb2.GenerateRequest] = []
        self.deadlines: list[float | None] = []
        self.pauses: list[float] = []
        self.now = 0.0
        monkeypatch.setattr(synchronous.time, "sleep", self._sleep)

    def __call__(self, message: generate_pb2.GenerateRequest, left_s: float | None) -> Broken:
        self.messages.append(message)
        self.deadlines.append(left_s)
        return next(self._calls, None) or Broken()

    def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def stream_of(
    asked: Asked,
    kind: type[Any] = Stream,
    *,
    resume_s: float = 10.0,
    timeout: float | None = None,
    n: int = 1,
) -> Any:
    request = generate_pb2.GenerateRequest(
        request_id="r", sampling_params=generate_pb2.SamplingParams(n=n)
    )
    return kind(asked, "h:1", request, resume_s=resume_s, timeout=timeout, clock=lambda: asked.now)


def chunk(ids: tuple[int, ...], offset: int, index: int = 0) -> generate_pb2.GenerateResponse:
    told = generate_pb2.GenerateStreamChunk(token_ids=ids, offset=offset, index=index)
    return generate_pb2.GenerateResponse(chunk=told)


def test_it_asks_for_what_each_answer_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [chunk((1, 2), 0), chunk((3,), 2), chunk((1, 2, 3, 4), 0, index=2)]
    asked = Asked(monkeypatch, Broken(*told), Broken(chunk((9,), 3)))
    stream = stream_of(asked, n=3)
    assert [next(stream).token_ids for _ in range(4)] == [(1, 2), (3,), (1, 2, 3, 4), (9,)]
    first, again = asked.messages
    assert not first.HasField("resume")
    assert list(again.resume.offsets) == [3, 0, 4]
    assert again.request_id == stream.request_id == "r"
    assert stream.resumed == 1


def test_pauses_grow_until_the_time_is_over_and_news_start_them_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Asked(monkeypatch, Broken(), Broken(), Broken(chunk((1,), 0)))
    stream = stream_of(asked, resume_s=10.0)
    assert next(stream).token_ids == (1,)
    assert asked.pauses == [0.1, 0.2]
    asked.pauses.clear()
    with pytest.raises(Unavailable, match="gone"):
        next(stream)
    assert stream.resumed == 1, "however often it was tried"
    assert asked.pauses[:5] == [0.1, 0.2, 0.4, 0.8, LONGEST_PAUSE_S]
    assert 9.0 < sum(asked.pauses) <= 10.0


def test_the_deadline_of_the_request_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    with pytest.raises(Unavailable):
        next(stream_of(asked, resume_s=60.0, timeout=1.0))
    assert asked.pauses == [0.1, 0.2, 0.4]  # the next one would end behind it
    assert asked.deadlines == pytest.approx([1.0, 0.9, 0.7, 0.3])


@pytest.mark.parametrize(
    "code",
    [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.INTERNAL],
)
def test_what_trying_again_cannot_help_is_the_client_s_to_see(
    code: grpc.StatusCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(monkeypatch, Broken(code=code))
    with pytest.raises(DsparkError, match=r"gone|deadline"):
        next(stream_of(asked))
    assert len(asked.messages) == 1


def test_a_full_queue_ends_a_new_request_and_holds_up_one_that_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Asked(monkeypatch, Broken(code=FULL))
    with pytest.raises(Overloaded):
        next(stream_of(asked))
    assert asked.pauses == []
    asked = Asked(monkeypatch, Broken(), Broken(code=FULL), Broken(chunk((1,), 0)))
    next(stream_of(asked))
    assert asked.pauses == [0.1, 0.3]


async def test_a_stream_closed_in_a_pause_is_not_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleep(_: float) -> None:
        other.close()

    asked, asked_too = Asked(monkeypatch), Asked(monkeypatch)
    stream, other = stream_of(asked), stream_of(asked_too, AsyncStream)
    monkeypatch.setattr(synchronous.time, "sleep", lambda _: stream.close())
    monkeypatch.setattr(asynchronous, "asyncio", SimpleNamespace(sleep=sleep))
    for _ in range(2):
        with pytest.raises(Cancelled):
            next(stream)
        with pytest.raises(Cancelled):
            await anext(other)
    assert len(asked.messages) == len(asked_too.messages) == 1
