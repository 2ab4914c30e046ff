"""What `dspark down` waits for: requests that are under way, also where their coordinator has no
time to say so; and `dspark up --block` beside a cell that ends without it."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import pytest

from deploy import down
from deploy.head import Head, free_ports
from deploy.process_tags import VARIABLE
from dspark.cli import lifecycle
from dspark.client.cell import Cell, cell_file, remove_cell, write_cell
from dspark.errors import DsparkError, Unavailable
from dspark.wire.v1 import control_pb2, control_pb2_grpc
from tests.noted_cell import CELL
from tests.services.http_cell import HttpCell

Answer = Callable[[grpc.ServicerContext], object]


@contextlib.contextmanager
def coordinator(answer: Answer) -> Iterator[Cell]:
    """That is asked for its status."""

    class Control(control_pb2_grpc.ControlServicer):
        def GetStatus(self, request: object, context: grpc.ServicerContext) -> object:
            return answer(context)

    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        control_pb2_grpc.add_ControlServicer_to_server(Control(), server)  # type: ignore[no-untyped-call]
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield replace(CELL, endpoint=f"127.0.0.1:{port}")
        finally:
            server.stop(None).wait()


def test_requests_are_waited_for_and_so_is_who_has_no_time_to_count_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(down, "ASK_S", 0.5)
    nothing, exhausted = control_pb2.GetStatusReply(), grpc.StatusCode.RESOURCE_EXHAUSTED
    lane = control_pb2.LaneStatus(running=2, waiting=1)
    busy = control_pb2.GetStatusReply(queued=1, lanes=[lane])
    answers: list[tuple[Answer, str]] = [
        (lambda context: busy, "4 requests"),
        (lambda context: nothing, ""),
        # as a process does that others keep from its core
        (lambda context: time.sleep(2.0) or nothing, "requests"),
        (lambda context: context.abort(exhausted, "too many calls"), "requests"),
    ]
    for answer, said in answers:
        with coordinator(answer) as cell:
            assert down.under_way(cell) == said
    assert down.under_way(cell) == "", "nobody listens there any more"


def test_a_cell_that_outlives_its_rays_head_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSPARK_HOME", str(tmp_path))
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as busy:  # who has no time to answer
        cell = replace(CELL, endpoint=f"127.0.0.1:{busy.getsockname()[1]}")
        write_cell(replace(cell, ray_address=f"127.0.0.1:{free_ports(1)[0]}"))
        with pytest.raises(DsparkError, match=f"the cell still listens at {cell.endpoint}"):
            down.take_down(said.append)
        assert cell_file().exists()
    down.take_down(said.append)
    assert "with the cluster its actors are gone too" in said[0]
    assert not cell_file().exists()


def test_who_has_got_the_port_of_a_cell_that_is_gone_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another cell's coordinator, and a server that speaks no gRPC."""
    monkeypatch.setenv("DSPARK_HOME", str(tmp_path))
    monkeypatch.setattr(down, "ASK_S", 20.0)  # none of them is to seem busy
    refused = grpc.StatusCode.UNAUTHENTICATED
    web = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    try:
        with coordinator(lambda context: context.abort(refused, "not your token")) as other:
            for endpoint in (other.endpoint, f"127.0.0.1:{web.server_port}"):
                write_cell(replace(CELL, endpoint=endpoint))
                down.take_down(lambda _: None)
                assert not cell_file().exists()
    finally:
        web.shutdown()
        web.server_close()
    with coordinator(lambda context: control_pb2.GetStatusReply()) as own:
        write_cell(own)
        with pytest.raises(DsparkError, match="the cell still listens"):
            down.take_down(lambda _: None)


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the place of the cluster's leader, and short patience."""
    monkeypatch.setenv("DSPARK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(lifecycle, "LOOK_S", 0.01)
    handler = signal.getsignal(signal.SIGTERM)
    marked = {**os.environ, VARIABLE: CELL.cell_id}
    process = subprocess.Popen(["sleep", "600"], env=marked, start_new_session=True)
    yield process
    signal.signal(signal.SIGTERM, handler)
    process.kill()
    process.wait()


def _cell(endpoint: str, ray_pid: int) -> Cell:
    cell = replace(CELL, endpoint=endpoint, ray_pid=ray_pid, ray_dir="/nowhere")
    write_cell(cell)
    return cell


@pytest.mark.parametrize("reused", [False, True])
def test_a_cell_whose_ray_is_gone_ends_it_with_a_sentence(
    ray: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, reused: bool
) -> None:
    """Also where another process has its id by now."""
    monkeypatch.setattr(lifecycle, "RAY_GONE_S", 0.2)
    leader = os.getppid() if reused else ray.pid
    cell = _cell(f"127.0.0.1:{free_ports(1)[0]}", leader)
    ray.kill()
    with pytest.raises(Unavailable, match=rf"its Ray cluster \(process {leader}\) is gone"):
        lifecycle._stay(cell)
    assert not cell_file().exists(), "what is left is cleared"


@pytest.mark.parametrize("own", [True, False])
def test_a_coordinator_that_does_not_come_back_ends_it_and_another_cluster_is_left_alone(
    ray: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    monkeypatch.setattr(lifecycle, "SILENT_S", 0.2)
    cell = _cell(f"127.0.0.1:{free_ports(1)[0]}", ray.pid if own else 0)
    with pytest.raises(Unavailable, match=f"no answer at {cell.endpoint} for 0.2 s") as ended:
        lifecycle._stay(cell)
    assert ("it was left as it is" in str(ended.value)) is cell_file().exists() is not own


def test_who_is_told_again_takes_it_down_at_once_and_wholly(
    ray: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told_again(grace_s: float) -> None:
        raise KeyboardInterrupt

    def told(cell: Cell) -> bool:
        raise KeyboardInterrupt

    def told_a_third_time(head: Head) -> list[int]:
        monkeypatch.setattr(down, "stop_head", lambda head: [])
        raise KeyboardInterrupt

    monkeypatch.setattr(down, "under_way", lambda cell: "2 requests")
    monkeypatch.setattr(down, "_beside", told_again)
    monkeypatch.setattr(down, "stop_head", told_a_third_time)
    monkeypatch.setattr(down, "answers", told)
    with contextlib.suppress(KeyboardInterrupt):  # it would end the tests
        lifecycle._stay(_cell("127.0.0.1:1", ray.pid))
    assert not cell_file().exists()


def test_it_stays_while_the_cell_answers_and_leaves_when_it_was_taken_down(
    ray: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "SILENT_S", 0.5)
    with HttpCell(workers=False, http=None) as running:
        cell = _cell(running.coordinator.endpoint, ray.pid)
        leaving = threading.Timer(2.0, remove_cell)
        leaving.start()
        lifecycle._stay(cell)
        leaving.join()
