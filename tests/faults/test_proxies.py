"""A proxy between real processes: a hole that keeps connections open, and connections that are
cut."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from faults.processes import FaultCell
from faults.tcp_proxy import TcpProxy, Way


@pytest.fixture
def echo() -> Iterator[str]:
    """A server that says what it hears."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(ConnectionError):
                while data := connection.recv(1024):
                    connection.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.close()


def test_a_blackhole_keeps_the_connection_and_holds_what_was_said(echo: str) -> None:
    proxy = TcpProxy("echo", echo)
    host, _, port = proxy.endpoint.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=10) as wire:
            wire.sendall(b"one")
            assert wire.recv(16) == b"one"
            proxy.blackhole(Way.OUT)
            wire.sendall(b"two")
            wire.settimeout(0.5)
            with pytest.raises(TimeoutError):
                wire.recv(16)
            proxy.heal()
            wire.settimeout(10)
            assert wire.recv(16) == b"two"
    finally:
        proxy.close()


def test_a_cell_whose_drafter_s_connections_are_cut_answers_the_same() -> None:
    with FaultCell(between="tcp") as cell, cell.client() as client:
        options: dict[str, Any] = {
            "max_tokens": 64,
            "seed": 1,
            "ignore_eos": True,
            "policy": "fixed:3",
        }
        options |= {"rule": "coupled", "timeout": 60.0}
        calm = client.complete([5, 9, 17, 33], **options).token_ids
        ids, taken = list[int](), cell.proxies["draft/0"].taken
        for event in client.generate([5, 9, 17, 33], **options):
            ids += event.token_ids
            if len(ids) in range(9, 30):
                cell.proxies["draft/0"].cut()
        assert tuple(ids) == calm
        assert cell.proxies["draft/0"].taken > taken, "they are made again"
