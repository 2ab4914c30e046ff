"""Bringing a cell up and down, as far as it goes without Ray."""

import contextlib
import fcntl
import os
import re
import socket
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from deploy import down, ray_environment, up
from deploy.config import ClusterConfig
from deploy.fleet import NoAnswer, NothingStarted
from deploy.head import Head
from deploy.process_tags import VARIABLE
from deploy.up import bring_up
from dspark.client.cell import cell_file, write_cell
from dspark.errors import ConfigError, DsparkError, Unavailable
from dspark.runtime.identity import state_dir
from tests.noted_cell import CELL
from tests.unit.deploy.conftest import Write

FLAT = Path(__file__).parents[3] / "benchmarks" / "synthetic" / "flat.yaml"


def begin(config: ClusterConfig, file: Path | None = None, say: Any = print, **more: Any) -> None:
    bring_up(config, file=file, environ={}, say=say, **more)


def test_of_two_that_start_at_one_time_one_is_refused() -> None:
    fails = partial(begin, ClusterConfig(), scaling={"sometimes": 1})
    other = os.open(state_dir(), os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(DsparkError, match="another `dspark up`"):
        fails()
    os.close(other)
    for _ in range(2):  # nor is one that failed in the way of the next
        with pytest.raises(DsparkError, match="sometimes"):
            fails()


@pytest.mark.parametrize("marks", [True, False])
def test_a_cluster_whose_process_has_ended_is_not_up(
    marks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one whose id another process has by now, as after the machine has started anew; where
    processes have no marks it has to be free."""
    monkeypatch.setattr("deploy.process_tags.has_marks", lambda: marks)
    ended = subprocess.Popen(["true"])
    ended.wait()
    write_cell(replace(CELL, ray_pid=os.getpid() if marks else ended.pid))
    said: list[str] = []
    # the next one is begun, at an address that no server here can have
    with pytest.raises(ConfigError, match=r"^cluster\.bind: cannot listen on 192\.0\.2\.1:"):
        begin(ClusterConfig(bind="192.0.2.1", insecure=True), say=said.append)
    assert said[0].startswith("clearing the state of a cluster that is gone")
    assert not cell_file().exists()


LOCAL = ClusterConfig(engine="synthetic", synthetic=str(FLAT), http=None)
GUEST = replace(LOCAL, address="127.0.0.1:1", bind="0.0.0.0")


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "start_head", None)


MISSING = "{key}: cannot read {here}/missing: No such file or directory"


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        ("coordinator", "client_token_file", "{here}/missing", MISSING),
        ("frontend", "client_token_file", "{here}/missing", MISSING),
        ("verify", "metrics_token_file", "{here}/missing", MISSING),
        (
            "coordinator",
            "journal",
            "{here}/taken/j",
            "coordinator.journal: {here}/taken/j: Not a d",
        ),
    ],
)
def test_a_file_that_cannot_be_is_told_before_ray_starts(
    section: str, key: str, value: str, said: str, tmp_path: Path, write: Write, no_ray: None
) -> None:
    (tmp_path / "taken").touch()
    file = write(f"{section}: {{{key}: {value.format(here=tmp_path)}}}")
    with pytest.raises(ConfigError) as told:
        begin(LOCAL, file)
    assert str(told.value).startswith(said.format(key=key, here=tmp_path))
    assert not cell_file().exists()


@pytest.mark.parametrize(
    ("told", "change", "said"),
    [
        ("coordinator: {cpus: 4000}", {}, "coordinator.cpus: 4000 is none of the processors"),
        (
            "frontend: {http: '127.0.0.1:28999'}",
            {"frontends": 2},
            "frontend.http: 127.0.0.1:28999 is what another process asks for, too",
        ),
        (
            "verify: {metrics_port: 28998}\ndraft: {rounds_port: 28998}",
            {},
            "draft.rounds_port: 127.0.0.1:28998 is what verify.metrics_port asks for, too",
        ),
    ],
)
def test_what_processes_of_one_machine_cannot_have_is_told_before_ray_starts(
    told: str, change: dict[str, int], said: str, write: Write, no_ray: None
) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}"):
        begin(replace(LOCAL, **change), write(told))


def test_a_file_of_processes_that_there_will_not_be_is_not_looked_for(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up, "start_head", mock.Mock(side_effect=Unavailable("Ray")))
    missing = "{metrics_token_file: missing}"
    file = write(f"frontend: {missing}\ndraft: {missing}")
    with pytest.raises(Unavailable, match="Ray"):
        begin(replace(LOCAL, drafters=0), file)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"target": "nosuch"}, "cluster.target: nosuch: neither a folder nor"),
        ({"drafter": "org/nosuch"}, "cluster.drafter: org/nosuch: neither a folder nor"),
        ({"target": "no.gguf"}, "cluster.target: no.gguf: No such file"),
        ({"target": "org/nosuch"}, "cluster.target: org/nosuch at revision v2: neither"),
    ],
)
def test_a_model_that_is_not_to_be_had_is_told_before_ray_starts(
    change: dict[str, str], said: str, golden_target: Path, write: Write, no_ray: None
) -> None:
    """It is looked for at the revision that its workers take."""
    models = {"target": str(golden_target), "drafter": "none", **change}
    file = write("verify: {target_revision: v2}" if "v2" in said else "")
    with pytest.raises(ConfigError, match=f"^{said}"):
        begin(ClusterConfig(**models, http=None), file)


@pytest.mark.parametrize("named", [True, False])
def test_tokens_that_the_operator_names_are_neither_drawn_nor_handed_on(
    named: bool, tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = mock.Mock(side_effect=NothingStarted("enough is known"))
    monkeypatch.setattr(up, "_serve", serve)
    file = write(f"coordinator: {{client_token_file: {tmp_path / 'tenants'}}}" if named else "")
    with pytest.raises(NothingStarted):
        begin(GUEST, file)
    _, _, secrets, *_ = serve.call_args.args
    assert ("client_token_file" in secrets) != named


def test_a_guest_that_cannot_join_leaves_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (up, down):
        missing = mock.Mock(side_effect=ImportError("No module named 'ray'"))
        monkeypatch.setattr(module, "joined", missing)
    with pytest.raises(ImportError, match="ray"):
        begin(GUEST)
    assert not cell_file().exists()


def test_what_is_taken_down_while_it_starts_stays_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray that ends by itself is started anew; one that `dspark down` ends is not."""
    head = Head("127.0.0.1:1", os.getpid(), tmp_path, "")
    said: list[str] = []

    def start_head(token: Path, cell_id: str, environ: object, noted: Any, **_: object) -> None:
        def stop_head(_: Head) -> list[int]:
            with pytest.raises(Unavailable):
                noted(head)  # a second start, before all of the first have ended
            return []

        noted(head)
        monkeypatch.setattr(down, "stop_head", stop_head)
        down.take_down(said.append)
        raise FileNotFoundError("its folder is gone")

    monkeypatch.setattr(up, "start_head", start_head)
    with pytest.raises(Unavailable, match="`dspark down` ended the cell while it started"):
        begin(LOCAL, say=said.append)
    assert not cell_file().exists()
    assert said[0] == "ray: starting a local cluster"
    assert [line.partition(":")[0] for line in said[1:]] == ["down"]


@pytest.mark.parametrize("silent", [False, True])
def test_what_is_taken_down_once_ray_is_there_stays_down(
    silent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before the actors begin, or under a controller that is then waited for no longer."""

    def reserve(topology: Any, *_: object, **__: object) -> tuple[Any, str]:
        if not silent:
            cell_file().unlink()  # as `dspark down` does
        return topology, ""

    def report(_: object) -> None:
        cell_file().unlink(missing_ok=True)
        raise NoAnswer("it is gone, or starts again")

    head = Head("127.0.0.1:1", os.getpid(), tmp_path, "")
    ray = mock.Mock(report=mock.Mock(side_effect=report))
    monkeypatch.setattr(up, "start_head", lambda token, cell_id, environ, noted, **_: noted(head))
    monkeypatch.setattr(up, "joined", lambda _: contextlib.nullcontext(ray))
    monkeypatch.setattr(up, "check_guarded", lambda *_, **__: None)
    monkeypatch.setattr(up, "reserve", reserve)
    with pytest.raises(Unavailable, match="`dspark down` ended the cell while it started"):
        begin(replace(LOCAL, start_timeout_s=5.0))
    assert not cell_file().exists()
    assert ray.start_controller.call_count == ray.report.call_count == silent


def test_a_start_that_is_broken_off_twice_is_taken_down_wholly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_head(token: Path, cell_id: str, environ: object, noted: Any, **_: object) -> None:
        noted(Head("127.0.0.1:1", os.getpid(), tmp_path, ""))
        raise KeyboardInterrupt

    def again(_: Head) -> list[int]:
        monkeypatch.setattr(down, "stop_head", lambda _: [])
        raise KeyboardInterrupt

    monkeypatch.setattr(up, "start_head", start_head)
    monkeypatch.setattr(down, "stop_head", again)
    with pytest.raises(KeyboardInterrupt):
        begin(LOCAL)
    assert not cell_file().exists()


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
    marks = {**os.environ, VARIABLE: at["cell_id"]}
    said: list[str] = []
    with subprocess.Popen(["sleep", "600"], env=marks, start_new_session=True) as leader:
        write_cell(replace(CELL, **at, ray_pid=leader.pid, ray_dir=str(tmp_path)))
        down.take_down(said.append, 1.0)
    assert said == ["draining: 1 requests have up to 1 s to finish", f"down: {nobody}"]
    assert not here
    assert not cell_file().exists()
