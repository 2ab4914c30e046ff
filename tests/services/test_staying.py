"""`dspark up --block` beside a cell that ends without it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy import down
from deploy.head import Head, free_ports
from dspark.cli import lifecycle
from dspark.client.cell import Cell, cell_file, remove_cell, write_cell
from dspark.errors import Unavailable
from tests.services.http_cell import HttpCell


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the place of the cluster's leader, and short patience."""
    monkeypatch.setenv("DSPARK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(lifecycle, "LOOK_S", 0.01)
    handler = signal.getsignal(signal.SIGTERM)
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    signal.signal(signal.SIGTERM, handler)
    process.kill()
    process.wait()


def _cell(endpoint: str, ray_pid: int) -> Cell:
    cell = Cell(
        endpoint,
        "never-marked",
        "/nowhere",
        "127.0.0.1:1",
        ray_pid,
        "/nowhere",
        "a target",
        "a drafter",
    )
    write_cell(cell)
    return cell


def test_a_cell_whose_ray_is_gone_ends_it_with_a_sentence(
    ray: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "RAY_GONE_S", 0.2)
    cell = _cell(f"127.0.0.1:{free_ports(1)[0]}", ray.pid)
    ray.kill()
    with pytest.raises(Unavailable, match=rf"its Ray cluster \(process {ray.pid}\) is gone"):
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
    monkeypatch.setattr(lifecycle, "_answers", told)
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
