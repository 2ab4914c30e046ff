"""Channels to the processes of a cell: one whose connection is lost is not used again."""

import asyncio
import errno
from typing import Any
from unittest.mock import AsyncMock

import pytest

from deploy import probe
from deploy.fleet import StartedProcess
from deploy.probe import ControlAnnouncer, Probe
from dspark.errors import ConfigError, Unavailable
from dspark.runtime.channel import open_channel

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


async def test_a_process_that_was_away_is_checked_over_a_new_channel(opened: list[Any]) -> None:
    looking = Probe(NOBODY, "")
    for misses in (1, 2):
        await looking.look()
        assert looking.misses == misses
        assert len(opened) == misses + 1
    await looking.close()


async def test_a_controller_without_descriptors_counts_nobody_as_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looking = Probe(NOBODY, "")
    monkeypatch.setattr(
        asyncio, "open_connection", AsyncMock(side_effect=OSError(errno.EMFILE, ""))
    )
    began = looking.heard
    await looking.look()
    assert looking.misses == 0
    assert looking.heard > began  # or it would count as silent after a while
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
