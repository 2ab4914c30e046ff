"""Channels to the processes of a cell: one whose connection is lost is not used again."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from functools import partial
from typing import Any
from unittest.mock import AsyncMock, Mock

import grpc
import pytest

from deploy import probe
from deploy.fleet import StartedProcess
from deploy.probe import ControlAnnouncer, Probe
from deploy.topology import ProcessRole
from dspark.errors import ConfigError, Unavailable
from dspark.runtime.channel import open_channel
from dspark.wire.v1 import control_pb2, control_pb2_grpc

NOBODY = StartedProcess("127.0.0.1:1", 1, 1)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The channels that were opened; each reads the certificate files anew."""
    channels: list[Any] = []

    def noting(*words: Any, **keys: Any) -> Any:
        channels.append(open_channel(*words, **keys))
        return channels[-1]

    monkeypatch.setattr(probe, "open_channel", noting)
    return channels


async def test_a_coordinator_that_was_away_is_asked_over_a_new_channel(opened: list[Any]) -> None:
    announcer = ControlAnnouncer(None)
    for calls in (1, 2):
        with pytest.raises(Unavailable):
            await announcer.announce(NOBODY, {}, frozenset())
        assert len(opened) == calls


@pytest.fixture
async def looking() -> AsyncIterator[Probe]:
    made = Probe(NOBODY, "")
    yield made
    await made.close()


async def test_a_process_that_was_away_is_checked_over_a_new_channel(
    opened: list[Any], looking: Probe
) -> None:
    for misses in (1, 2):
        await looking.look()
        assert looking.misses == misses
        assert len(opened) == misses + 1


class Coordinator(control_pb2_grpc.ControlServicer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    async def Announce(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        self.told.append((dict(context.invocation_metadata())["authorization"], *request.workers))
        return control_pb2.AnnounceReply(idle=["draft/1"])


async def test_an_announcement_says_all_of_a_worker_to_the_coordinator_that_is_there() -> None:
    announcer = ControlAnnouncer("secret")
    workers = {
        "verify/0": (ProcessRole.VERIFY, StartedProcess("127.0.0.1:2", 20, 1)),
        "draft/1": (ProcessRole.DRAFT, StartedProcess("127.0.0.1:3", 30, 1)),
    }
    entry = partial(control_pb2.WorkerEndpoint, draining=False)
    for _ in range(2):  # the second one is another process, at another place
        server, one = grpc.aio.server(), Coordinator()
        control_pb2_grpc.add_ControlServicer_to_server(one, server)  # type: ignore[no-untyped-call]
        place = StartedProcess(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", 1, 1)
        await server.start()
        assert await announcer.announce(place, workers, {"draft/1"}) == {"draft/1"}
        await server.stop(0)
        draft = entry(role=3, name="draft/1", endpoint="127.0.0.1:3", incarnation=30, draining=True)
        verify = entry(role=2, name="verify/0", endpoint="127.0.0.1:2", incarnation=20)
        assert one.told == [("Bearer secret", draft, verify)]


@pytest.mark.parametrize(
    ("failure", "asked"),
    [
        (OSError(errno.EMFILE, ""), False),
        (socket.gaierror(socket.EAI_AGAIN, ""), False),
        (socket.gaierror(socket.EAI_NONAME, ""), True),
        (OSError(errno.EHOSTUNREACH, ""), True),
        (TimeoutError(), True),
    ],
)
async def test_only_a_refused_connection_is_a_refusal(
    failure: OSError, asked: bool, looking: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address that cannot be reached is silent, whoever is well there."""
    looking.misses, began = 1, looking.heard
    monkeypatch.setattr(asyncio, "open_connection", AsyncMock(side_effect=failure))
    await looking.look()
    assert looking.misses == 0
    # a process that nobody could ask is not silent
    assert (looking.heard == began) is asked


@pytest.mark.parametrize("one_listens", [False, True])
async def test_a_name_of_two_addresses_refuses_where_both_do(
    one_listens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.2", 0)) as there:
        port = there.getsockname()[1]
        if not one_listens:
            there.close()
        found = [(0, 0, 0, "", (host, port)) for host in ("127.0.0.1", "127.0.0.2")]
        resolve = AsyncMock(return_value=found)
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        assert await probe._refuses(f"worker:{port}") is not one_listens


FULL = grpc.aio.AioRpcError(
    grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.aio.Metadata(), grpc.aio.Metadata()
)


@pytest.mark.parametrize("answer", [None, FULL])
async def test_who_answers_is_heard_and_has_missed_nothing(
    answer: Exception | None, looking: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even that it has no room for another call."""
    looking.misses, looking.heard = 1, 0.0
    monkeypatch.setattr(looking._stub, "Check", AsyncMock(side_effect=answer))
    await looking.look()
    assert looking.misses == 0 < looking.heard


async def test_files_that_do_not_fit_for_a_moment_stop_no_check(
    looking: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable = Mock(side_effect=ConfigError("tls_cert: is half written"))
    monkeypatch.setattr(probe, "open_channel", unreadable)
    for misses in (1, 2):
        await looking.look()
        assert looking.misses == misses
