"""Connections through a proxy: a hole that keeps them open, and those of a cell that are cut."""

import contextlib
import socket
from typing import Any

import pytest

from tests.faults.processes import FaultCell
from tests.faults.tcp_proxy import TcpProxy, Way
from tests.waiting import wait_until


def test_a_blackhole_keeps_the_connection_and_holds_what_was_said() -> None:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        proxy = TcpProxy("wire", f"127.0.0.1:{listener.getsockname()[1]}")
        stack.callback(proxy.close)
        host, _, port = proxy.endpoint.rpartition(":")
        near = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
        far = stack.enter_context(listener.accept()[0])
        proxy.blackhole(Way.OUT)
        near.sendall(b"one")
        assert far.recv(16) == b"one"
        far.sendall(b"two")
        near.settimeout(0.5)
        with pytest.raises(TimeoutError):
            near.recv(16)
        proxy.heal()
        near.settimeout(10)
        assert near.recv(16) == b"two"


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
        wait_until(lambda: cell.proxies["draft/0"].taken > taken)  # they are made again
