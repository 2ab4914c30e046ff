"""Commands end where Ray does not answer. Ray is not started."""

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from deploy import down, ray_environment
from deploy.fleet import NothingStarted
from dspark.client.cell import cell_file, write_cell
from tests.noted_cell import CELL


@pytest.mark.timeout(60)
def test_a_ray_cluster_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is stopped: the system takes connections for it."""
    monkeypatch.setattr(ray_environment, "ASK_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(NothingStarted, match=f"127.0.0.1:{port} does not answer"):
            ray_environment.driving(f"127.0.0.1:{port}", local=True).__enter__()


def test_down_asks_ray_from_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray ends the process of a driver whose node it cannot reach; what is left has to end."""
    monkeypatch.setattr(down, "under_way", lambda cell: "1 requests")
    here: list[str] = []
    monkeypatch.setattr(down, "close_remote", lambda cell, *_: here.append(cell.cell_id))
    with socket.create_server(("127.0.0.1", 0)) as gone:
        nobody = f"127.0.0.1:{gone.getsockname()[1]}"
    at = {"endpoint": nobody, "ray_address": nobody, "cell_id": "test-down-asks"}
    write_cell(replace(CELL, **at, ray_pid=os.getpid(), ray_dir=str(tmp_path)))
    said: list[str] = []
    down.take_down(said.append, 1.0)
    assert said == ["draining: 1 requests have up to 1 s to finish", f"down: {nobody}"]
    assert not here
    assert not cell_file().exists()
