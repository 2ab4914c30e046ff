"""When a client goes on with a broken stream, when it gives up, and what it asks for."""

from __future__ import annotations

from types import SimpleNamespace

import grpc
import pytest

from dspark.client import Cancelled, asynchronous, synchronous
from dspark.client.asynchronous import AsyncStream
from dspark.client.events import Chunk
from dspark.client.resuming import LONGEST_PAUSE_S, Resuming
from dspark.client.synchronous import Stream
from dspark.errors import DsparkError, Expired, InvalidRequest, Overloaded, Unavailable
from dspark.wire.v1 import generate_pb2


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def resuming(
    *, resume_s: float = 10.0, timeout: float | None = None, n: int = 1
) -> tuple[Resuming, Clock]:
    clock = Clock()
    request = generate_pb2.GenerateRequest(
        request_id="r", sampling_params=generate_pb2.SamplingParams(n=n)
    )
    return Resuming(request, resume_s=resume_s, timeout=timeout, clock=clock), clock


def test_it_asks_for_what_each_answer_lacks() -> None:
    stream, _ = resuming(n=3)
    stream.note(Chunk("", (1, 2), 0))
    stream.note(Chunk("", (3,), 2))
    stream.note(Chunk("", (1, 2, 3, 4), 0, index=2))
    message = stream.again()
    assert list(message.resume.offsets) == [3, 0, 4]
    assert message.request_id == "r"
    assert stream.times == 1


def test_pauses_grow_until_the_time_is_over_and_news_start_them_anew() -> None:
    stream, clock = resuming(resume_s=10.0)
    pauses = []
    while (pause := stream.pause(Unavailable("gone"))) is not None:
        pauses.append(pause)
        clock.now += pause
    assert pauses[:5] == [0.1, 0.2, 0.4, 0.8, LONGEST_PAUSE_S]
    assert 9.0 < sum(pauses) <= 10.0
    stream.note(Chunk("", (1,), 0))
    assert stream.pause(Unavailable("gone")) == 0.1


def test_the_deadline_of_the_request_comes_first() -> None:
    stream, clock = resuming(resume_s=60.0, timeout=1.0)
    clock.now = 0.5
    assert stream.left_s == 0.5
    assert stream.pause(Unavailable("gone")) == 0.1
    clock.now = 0.95
    assert stream.pause(Unavailable("gone")) is None


@pytest.mark.parametrize(
    "error", [InvalidRequest("resume", "no"), Expired("late"), DsparkError("bug")]
)
def test_what_trying_again_cannot_help_is_the_client_s_to_see(error: DsparkError) -> None:
    stream, _ = resuming()
    assert stream.pause(error) is None


def test_it_is_off_unless_asked_for() -> None:
    stream, _ = resuming(resume_s=0.0)
    assert stream.pause(Unavailable("gone")) is None


def test_a_full_queue_ends_a_new_request_and_holds_up_one_that_comes_back() -> None:
    stream, _ = resuming()
    assert stream.pause(Overloaded("full", retry_after_s=0.3)) is None
    assert stream.pause(Unavailable("gone")) == 0.1
    assert stream.pause(Overloaded("full", retry_after_s=0.3)) == 0.3


class Broken(grpc.RpcError):
    """A call that breaks at its first event."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "gone"

    def trailing_metadata(self) -> tuple[()]:
        return ()

    def __next__(self) -> None:
        raise self

    def __aiter__(self) -> Broken:
        return self

    async def __anext__(self) -> None:
        none = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(self.code(), none, none, "gone")

    def cancel(self) -> None:
        """It has ended."""


def test_a_stream_that_is_closed_while_it_pauses_is_not_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[object] = []
    stream = Stream(lambda *words: calls.append(words) or Broken(), "h:1", resuming()[0])  # type: ignore[func-returns-value]
    monkeypatch.setattr(synchronous.time, "sleep", lambda _: stream.close())
    with pytest.raises(Cancelled):
        next(stream)
    with pytest.raises(Cancelled):
        next(stream)
    assert len(calls) == 1


async def test_nor_is_one_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    stream = AsyncStream(lambda *words: calls.append(words) or Broken(), "h:1", resuming()[0])  # type: ignore[func-returns-value]

    async def sleep(_: float) -> None:
        stream.close()

    monkeypatch.setattr(asynchronous, "asyncio", SimpleNamespace(sleep=sleep))
    with pytest.raises(Cancelled):
        await anext(stream)
    assert len(calls) == 1


def test_a_client_that_is_closed_meanwhile_ends_its_streams_in_the_same_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[object] = []

    def ask(*words: object) -> Broken:
        calls.append(words)
        if len(calls) > 1:
            raise ValueError("Cannot invoke RPC on closed channel!")
        return Broken()

    stream = Stream(ask, "h:1", resuming()[0])
    monkeypatch.setattr(synchronous.time, "sleep", lambda _: None)
    with pytest.raises(Cancelled):
        next(stream)
