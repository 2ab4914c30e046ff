"""Ports are asked for before anything is loaded, and refused by the setting's name."""

import itertools
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from coordinator import process as coordinator_process
from coordinator.config import CoordinatorConfig, FrontendConfig
from coordinator.frontend import process as frontend_process
from deploy import head
from deploy.head import free_ports
from draft_service import process as draft_process
from draft_service.config import DraftConfig
from dspark.errors import ConfigError, Unavailable
from dspark.runtime.addresses import check_listeners
from verify_service import process as verify_process
from verify_service.config import VerifyConfig

PROCESSES = {
    "verify": (verify_process, VerifyConfig(target="nowhere")),
    "draft": (draft_process, DraftConfig(drafter="nowhere")),
    "coordinator": (coordinator_process, CoordinatorConfig()),
    "frontend": (frontend_process, FrontendConfig(coordinator="127.0.0.1:1")),
}


@pytest.fixture
def taken() -> Iterator[int]:
    """A port somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


@pytest.mark.parametrize(
    ("role", "key"),
    [
        *itertools.product(PROCESSES, ("bind", "metrics_port")),
        ("coordinator", "http"),
        ("frontend", "http"),
    ],
)
async def test_a_port_that_is_taken_is_refused_before_anything_is_loaded(
    role: str, key: str, taken: int
) -> None:
    process, config = PROCESSES[role]
    value: Any = taken if key == "metrics_port" else f"127.0.0.1:{taken}"
    settings = {**vars(config), key: value}
    with pytest.raises(
        ConfigError,
        match=rf"^{role}\.{key}: cannot listen on 127.0.0.1:{taken}: a process listens there",
    ):
        await process.start(type(config)(**settings))


@pytest.mark.parametrize(
    ("role", "key"),
    [*((role, "bind") for role in PROCESSES), ("coordinator", "http"), ("frontend", "http")],
)
async def test_a_listener_that_is_open_to_strangers_is_refused_before_anything_is_loaded(
    role: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, config = PROCESSES[role]
    for room in (coordinator_process, frontend_process):
        monkeypatch.setattr(room, "load_tokenizer", None)
    with pytest.raises(
        ConfigError, match=rf"^{role}\.{key}: 0\.0\.0\.0:0 can be reached from outside"
    ):
        await process.start(type(config)(**{**vars(config), key: "0.0.0.0:0"}))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"verify.bind": "192.0.2.1:7001"},
            "verify.bind: cannot listen on 192.0.2.1:7001: this machine has no such",
        ),
        (
            {"a.bind": "127.0.0.1:7999", "a.http": "127.0.0.1:7999"},
            "a.http: 127.0.0.1:7999 is what a.bind asks for, too",
        ),
        (
            {"a.bind": "0.0.0.0:7999", "a.http": "127.0.0.1:7999"},
            "a.http: 127.0.0.1:7999 is what a.bind asks for, too",
        ),
        (
            {"a.bind": "127.0.0.1:7999", "b.bind": "127.0.0.1:7998", "a.http": "0.0.0.0:7999"},
            "a.http: 0.0.0.0:7999 is what a.bind asks for, too",
        ),
        (
            {"a.bind": "[::]:7999", "a.http": "127.0.0.1:7999"},
            "a.http: 127.0.0.1:7999 is what a.bind asks for, too",
        ),
        ({"a.http": "nowhere"}, "a.http: 'nowhere' is not host:port"),
        ({"a.http": "a..b:7999"}, "a.http: 'a..b' is no name of a host"),
    ],
)
def test_what_cannot_be_listened_on_is_refused_by_its_setting(
    asked: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}"):
        check_listeners([*asked.items()])


def test_what_is_free_is_given_back(taken: int) -> None:
    free = f"127.0.0.1:{free_ports(1)[0]}"
    check_listeners([("a.bind", free), ("a.http", "127.0.0.1:0"), ("a.more", "127.0.0.1:0")])
    check_listeners([("a.bind", free)])


def test_ports_to_listen_at_are_none_that_the_kernel_gives_to_a_connection() -> None:
    ports = [*free_ports(12), *free_ports(500)]
    assert len(set(ports)) == 512
    assert max(ports) < 32_768, "the least port that a kernel gives where nobody changed its range"


def test_a_port_that_is_taken_is_passed_over(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "_PORTS", range(taken, taken + 1))
    monkeypatch.setattr(head, "_ports", itertools.cycle([taken]))
    with pytest.raises(
        Unavailable, match=rf"^1 free ports wanted between {taken} and {taken + 1}, 0 there"
    ):
        free_ports(1)
