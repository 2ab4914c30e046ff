"""Proxies between real processes: a hole that keeps connections open, resets, and rules for single
messages."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from faults.pair import FLAT
from faults.plan import Action, Plan, once
from faults.processes import FaultCell
from faults.tcp_proxy import TcpProxy, Way

PROMPT = [5, 9, 17, 33]
TOKENS = 24
# for the proxy itself: what it does to ids is proven on real pairs (`test_rounds_simulated`)
_WORKER = {"engine": "synthetic", "synthetic": FLAT, "measure_cost": True}
SYNTHETIC: dict[str, Any] = {"verify": _WORKER, "draft": _WORKER}


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


def _connect(endpoint: str) -> socket.socket:
    host, _, port = endpoint.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def _say(endpoint: str, what: bytes) -> None:
    """Raises ConnectionError when nobody takes it."""
    with _connect(endpoint) as wire:
        wire.sendall(what)
        if not wire.recv(16):
            raise ConnectionAbortedError("closed")


def test_a_blackhole_keeps_the_connection_and_holds_what_was_said(echo: str) -> None:
    proxy = TcpProxy("echo", echo)
    try:
        with _connect(proxy.endpoint) as wire:
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
            proxy.reset()
            wire.settimeout(10)
            with pytest.raises(ConnectionResetError):
                wire.recv(16)
        proxy.refuse()
        with pytest.raises(ConnectionError):
            _say(proxy.endpoint, b"x")
    finally:
        proxy.close()


def test_a_real_cell_loses_and_repeats_messages_and_answers_the_same() -> None:
    plan = Plan()
    coordinator = {"verify_deadline_s": 1.0}
    with (
        FaultCell(between="wire", plan=plan, coordinator=coordinator) as cell,
        cell.client() as client,
    ):
        options = {"max_tokens": TOKENS, "temperature": 0.0, "ignore_eos": True}
        calm = client.complete(PROMPT, **options).token_ids
        before = plan.seen["ControlUp.report"]
        plan.rules += [
            once("ControlUp.report", Action.DROP, at=before + 3),
            once("RoundsEvent.blocks", Action.TWICE, at=plan.seen["RoundsEvent.blocks"] + 2),
        ]
        assert client.complete(PROMPT, timeout=60.0, **options).token_ids == calm
        assert plan.hurt["ControlUp.report", Action.DROP] == 1
        assert plan.hurt["RoundsEvent.blocks", Action.TWICE] == 1
        assert cell.settled()
        assert "port_not_reached" not in cell.log("verify/0"), (
            "rounds have their own port here, too"
        )


def test_a_cell_behind_tcp_proxies_survives_a_reset_of_its_drafter() -> None:
    with FaultCell(between="tcp", **SYNTHETIC) as cell, cell.client() as client:
        options = {"max_tokens": 64, "seed": 1, "ignore_eos": True, "policy": "fixed:3"}
        calm = client.complete(PROMPT, **options).token_ids
        stream = client.generate(PROMPT, **options)
        ids: list[int] = []
        for event in stream:
            ids += event.token_ids
            if len(ids) > 8:
                cell.proxies["draft/0"].reset()
        assert tuple(ids) == calm
        assert cell.proxies["draft/0"].passed[Way.IN] > 0
