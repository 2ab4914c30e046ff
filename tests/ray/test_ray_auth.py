"""A Ray cluster of ours asks who calls; one that does not is not joined where strangers could reach it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

import deploy.head
from deploy import ray_auth
from deploy.fleet import NothingStarted
from deploy.head import Head, free_ports, start_head, stop_head
from deploy.marks import new_cell_id
from deploy.ray_auth import check_guarded, is_guarded

pytestmark = pytest.mark.ray


def test_a_local_cluster_refuses_whoever_shows_no_token(tmp_path: Path) -> None:
    head = start_head(tmp_path / "token", new_cell_id(), dict(os.environ), lambda _: None)
    try:
        assert is_guarded(head.address) is True
        check_guarded(head.address, insecure=False)
    finally:
        assert stop_head(head) == []


@pytest.mark.slow  # Ray is started twice
def test_a_port_that_somebody_took_meanwhile_costs_one_more_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    looks = [[taken.getsockname()[1], *free_ports(10)]]
    monkeypatch.setattr(deploy.head, "free_ports", lambda count: looks.pop() if looks else free_ports(count))
    begun: list[Head] = []
    with taken:
        head = start_head(tmp_path / "token", new_cell_id(), dict(os.environ), begun.append)
    try:
        assert begun[1:] == [head]
        assert not begun[0].folder.exists()
        assert is_guarded(head.address) is True
    finally:
        assert stop_head(head) == []


@pytest.mark.parametrize("answer", [False, None])
def test_an_open_cluster_is_joined_near_by_or_on_ones_own_word_only(
    monkeypatch: pytest.MonkeyPatch, answer: bool | None
) -> None:
    monkeypatch.setattr(ray_auth, "is_guarded", lambda address: answer)
    check_guarded("127.0.0.1:6379", insecure=False)
    check_guarded("10.0.0.7:6379", insecure=True)
    with pytest.raises(NothingStarted, match="RAY_AUTH_MODE=token"):
        check_guarded("10.0.0.7:6379", insecure=False)
