"""Our Ray cluster asks who calls; one that does not is not joined where strangers reach it."""

import contextlib
import os
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

import deploy.head
from deploy import ray_environment as ray_auth
from deploy.fleet import NothingStarted
from deploy.head import Head, free_ports, start_head, stop_head
from deploy.process_tags import new_cell_id
from deploy.ray_environment import check_guarded, is_guarded
from dspark.errors import Unavailable

pytestmark = pytest.mark.ray


@pytest.mark.slow  # Ray is started twice
def test_a_port_that_somebody_took_meanwhile_costs_one_more_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    looks = [[taken.getsockname()[1], *free_ports(10)]]
    monkeypatch.setattr(
        deploy.head, "free_ports", lambda count: looks.pop() if looks else free_ports(count)
    )
    begun: list[Head] = []
    with taken:
        head = start_head(tmp_path / "token", new_cell_id(), dict(os.environ), begun.append)
    try:
        assert begun[1:] == [head]
        assert not begun[0].folder.exists()
        assert is_guarded(head.address) is True
    finally:
        assert stop_head(head) == []


SAYS = {"joins": f"echo '{deploy.head.STARTED}'; exec sleep 600", "ends": "echo no node; exit 1"}


@pytest.mark.parametrize(
    ("answer", "start", "told"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "joins", None),
        (grpc.StatusCode.UNAUTHENTICATED, "ends", "did not start: no node"),
        (grpc.StatusCode.OK, "joins", "another Ray cluster"),
    ],
)
def test_a_cluster_that_is_slow_to_say_is_asked_again(
    tmp_path: Path, answer: grpc.StatusCode, start: str, told: str | None
) -> None:
    """Its port answers before its server can, and its server before its node has joined."""
    asked, log = 0, tmp_path / "log"

    def alive(request: bytes, context: grpc.ServicerContext) -> bytes:
        nonlocal asked
        asked += 1
        if (code := grpc.StatusCode.UNAVAILABLE if asked < 3 else answer) is not grpc.StatusCode.OK:
            context.abort(code, "")
        return b""

    method = grpc.unary_unary_rpc_method_handler(
        alive, lambda message: message, lambda message: message
    )
    server = grpc.server(ThreadPoolExecutor(1))
    name = ray_auth._METHOD.strip("/").split("/")
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(name[0], {name[1]: method}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with log.open("wb") as said:
        process = subprocess.Popen(["sh", "-c", f"sleep 2; {SAYS[start]}"], stdout=said)
    try:
        with pytest.raises(Unavailable, match=told) if told else contextlib.nullcontext():
            deploy.head._await_ours(process, port, log)
        assert start == "ends" or asked == 3
    finally:
        process.kill()
        process.wait()
        server.stop(None).wait()


@pytest.mark.parametrize(
    ("answer", "said"), [(False, "RAY_AUTH_MODE=token"), (None, "did not say within 10 s")]
)
def test_an_open_cluster_is_joined_near_by_or_on_ones_own_word_only(
    monkeypatch: pytest.MonkeyPatch, answer: bool | None, said: str
) -> None:
    monkeypatch.setattr(ray_auth, "is_guarded", lambda address: answer)
    check_guarded("127.0.0.1:6379", insecure=False)
    check_guarded("10.0.0.7:6379", insecure=True)
    with pytest.raises(NothingStarted, match=said):
        check_guarded("10.0.0.7:6379", insecure=False)
