"""The verifier's end of the rounds stream: where it finds a drafter, and that nothing of it stays
behind."""

import queue
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from dspark.runtime.security import Security
from dspark.runtime.telemetry import Metrics
from dspark.wire.v1 import draft_pb2
from tests.services.fake_drafter import ThreadedDrafter
from verify_service import drafter_stream
from verify_service.drafter_stream import DrafterStream
from verify_service.drafters import Drafters

HELLO = draft_pb2.RoundsHello(drafter_incarnation=1)


@pytest.fixture
def drafters() -> Iterator[Any]:
    made: list[ThreadedDrafter] = []

    def make(*arguments: Any) -> ThreadedDrafter:
        made.append(ThreadedDrafter(*arguments))
        return made[-1]

    yield make
    for each in made:
        each.stop()


class Ends:
    def __init__(self, drafter: ThreadedDrafter) -> None:
        self.came: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.lost: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.stream = DrafterStream(
            drafter.endpoint,
            HELLO,
            Security(),
            lambda _, event: self.came.put(event),
            lambda _, why: self.lost.put(why),
        )

    def greeted_by(self) -> str:
        return str(self.came.get(timeout=20).welcome.drafter_version)


@pytest.mark.parametrize("named", ["its own", "none", "one that cannot be reached"])
def test_rounds_go_to_the_port_that_the_drafter_names_or_where_everything_else_does(
    named: str, drafters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafter_stream, "REACH_S", 20.0 if named == "its own" else 0.2)
    own = drafters("own").port if named == "its own" else 1
    ends = Ends(drafters("main", *[own] * (named != "none")))
    assert ends.greeted_by() == ("own" if named == "its own" else "main")
    ends.stream.close()
    assert ends.lost.get(timeout=20).startswith("cancelled")


def test_a_stream_closed_while_its_drafter_is_looked_for_ends_without_a_word(
    drafters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, go_on = threading.Event(), threading.Event()
    look = DrafterStream._found

    def slowly(self: DrafterStream, channels: Any) -> Any:
        found.set()
        assert go_on.wait(20)
        return look(self, channels)

    monkeypatch.setattr(DrafterStream, "_found", slowly)
    ends = Ends(drafters("main", 0))
    assert found.wait(20)
    ends.stream.close()
    go_on.set()
    assert ends.lost.get(timeout=20)
    assert ends.came.empty()


def test_a_call_that_cannot_be_made_leaves_no_channel_behind(
    drafters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does where its metadata is none that a call may have."""
    shown = (("authorization", "line\nbreak"),)
    monkeypatch.setattr(drafter_stream, "auth_metadata", lambda token: shown)
    opened: list[grpc.Channel] = []
    closed: list[grpc.Channel] = []
    make = drafter_stream.sync_channel

    def channel(*arguments: Any, **more: Any) -> Any:
        made = make(*arguments, **more)
        opened.append(made)
        close = made.close
        made.close = lambda: (closed.append(made), close())
        return made

    monkeypatch.setattr(drafter_stream, "sync_channel", channel)
    ends = Ends(drafters("main", 0))
    assert ends.lost.get(timeout=20)
    assert opened
    assert all(each in closed for each in opened)


def test_a_message_is_leaving_until_grpc_comes_for_the_next_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # the stream itself looks for its drafter all the while
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        stream = DrafterStream(endpoint, HELLO, Security(), lambda *_: None, lambda *_: None)
        messages = stream._messages()
        assert stream.leaving, "the greeting"
        assert next(messages).hello == HELLO
        assert stream.leaving, "it was taken, and may still wait for its turn in this process"
        stream.send(draft_pb2.RoundsCommand())
        told = list[bool]()
        stream.idle = lambda: (told.append(stream.leaving), stream._unsent.put(None))[0]
        next(messages)
        assert stream.leaving
        assert list(messages) == []
        assert not stream.leaving
        assert told == [False], "once, when nothing is and nothing came"
        stream.close()


def test_one_stream_that_cannot_be_closed_keeps_no_other_one_open() -> None:
    engine: Any = SimpleNamespace(projection="p")
    worker: Any = SimpleNamespace(engine=engine, security=None, incarnation=1, metrics=Metrics())
    nothing: Any = SimpleNamespace(end=lambda: None)
    of_all: Any = Drafters(worker, nothing, lambda _: None, lambda _: None, nothing)
    closed = []

    class Stream:
        def __init__(self, number: int) -> None:
            self.number = number

        def close(self) -> None:
            closed.append(self.number)
            if self.number == 1:
                raise RuntimeError("broken")

    for number in (1, 2):
        of_all._links[number] = SimpleNamespace(stream=Stream(number), rows=nothing)
    of_all.end()
    assert closed == [1, 2]
