"""Channels to the processes of a cell: one whose connection is lost is not used again."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from unittest.mock import AsyncMock

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from deploy import probe
from deploy.fleet import StartedProcess
from deploy.probe import ControlAnnouncer, Probe
from deploy.topology import ProcessRole
from dspark.errors import ConfigError, Expired, Unavailable
from dspark.runtime.channel import open_channel
from dspark.wire.v1 import control_pb2, control_pb2_grpc

NOBODY = StartedProcess("127.0.0.1:1", 1, 1)
CLOSED = grpc.ChannelConnectivity.SHUTDOWN


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
        assert opened[-1].get_state() is CLOSED


class Coordinator(control_pb2_grpc.ControlServicer):
    """Keeps what it is told; silent ones never reply."""

    def __init__(self, *, silent: bool = False) -> None:
        self.told: list[tuple[Any, str]] = []
        self._silent = silent

    async def Announce(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        if self._silent:
            await asyncio.Event().wait()
        told = dict(context.invocation_metadata())
        self.told.append((request, str(told.get("authorization"))))
        return control_pb2.AnnounceReply(idle=["draft/1"])


@asynccontextmanager
async def serving(add: Callable[[Any], object]) -> AsyncIterator[StartedProcess]:
    server = grpc.aio.server()
    add(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield StartedProcess(f"127.0.0.1:{port}", 1, 1)
    finally:
        await server.stop(0)


async def test_an_announcement_says_all_of_a_worker_to_the_coordinator_that_is_there() -> None:
    announcer = ControlAnnouncer("secret")
    workers = {
        "verify/0": (ProcessRole.VERIFY, StartedProcess("127.0.0.1:2", 20, 1)),
        "draft/1": (ProcessRole.DRAFT, StartedProcess("127.0.0.1:3", 30, 1)),
    }
    for _ in range(2):  # the second one is another process, at another place
        one = Coordinator()
        async with serving(partial(control_pb2_grpc.add_ControlServicer_to_server, one)) as place:
            assert await announcer.announce(place, workers, {"draft/1"}) == {"draft/1"}
        ((said, token),) = one.told
        assert token == "Bearer secret"
        assert [
            (each.role, each.name, each.endpoint, each.incarnation, each.draining)
            for each in said.workers
        ] == [
            (control_pb2.ROLE_DRAFT, "draft/1", "127.0.0.1:3", 30, True),
            (control_pb2.ROLE_VERIFY, "verify/0", "127.0.0.1:2", 20, False),
        ]


async def test_a_coordinator_that_never_replies_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "ANNOUNCE_TIMEOUT_S", 0.1)
    one = Coordinator(silent=True)
    async with serving(partial(control_pb2_grpc.add_ControlServicer_to_server, one)) as place:
        with pytest.raises(Expired):
            await ControlAnnouncer(None).announce(place, {}, frozenset())


async def test_any_answer_is_life_and_silence_is_no_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def silent(*_: object) -> Any:
        raise TimeoutError

    well = health.aio.HealthServicer()
    await well.set("room", health_pb2.HealthCheckResponse.NOT_SERVING)
    async with serving(partial(health_pb2_grpc.add_HealthServicer_to_server, well)) as place:
        looking = Probe(place, "room")
        looking.misses, looking.heard = 1, 0.0
        await looking.look()
        assert looking.misses == 0
        assert looking.heard > 0
        await looking.close()
    monkeypatch.setattr(asyncio, "open_connection", silent)
    looking = Probe(NOBODY, "")
    looking.misses, looking.heard = 1, 0.0
    await looking.look()
    assert (looking.misses, looking.heard) == (0, 0.0), "in a row, and not heard of"
    await looking.close()


async def test_a_process_that_was_away_is_checked_over_a_new_channel(opened: list[Any]) -> None:
    looking = Probe(NOBODY, "")
    for misses in (1, 2):
        await looking.look()
        assert looking.misses == misses
        assert len(opened) == misses + 1
    assert [each.get_state() is CLOSED for each in opened] == [True, True, False]
    await looking.close()


async def test_a_controller_without_descriptors_counts_nobody_as_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looking = Probe(NOBODY, "")
    monkeypatch.setattr(
        asyncio, "open_connection", AsyncMock(side_effect=OSError(errno.EMFILE, ""))
    )
    await looking.look()
    assert looking.misses == 0
    await looking.close()


async def test_files_that_do_not_fit_for_a_moment_stop_no_check(
    opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = Probe(NOBODY, "")

    def unreadable(*_: Any, **__: Any) -> Any:
        raise ConfigError("tls_cert: is half written")

    monkeypatch.setattr(probe, "open_channel", unreadable)
    for misses in (1, 2):
        await looking.look()
        assert looking.misses == misses
    await looking.close()
