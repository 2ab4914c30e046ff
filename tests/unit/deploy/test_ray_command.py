"""`dspark ray -- WORDS`, and how `dspark up` finds the cluster that it is a job of."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.cell_plan import read_config
from dspark.cli.main import main
from dspark.client.cell import find_cell, write_cell
from tests.noted_cell import CELL
from tests.unit.deploy.conftest import Write

OURS = replace(CELL, ray_address="127.0.0.1:6379", ray_pid=os.getpid(), name="mine")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """Commands that would have run, with their environment."""
    found: list[tuple[list[str], dict[str, str]]] = []

    def run(command: list[str], *, env: dict[str, str], check: bool) -> Any:
        found.append((command[3:], env))
        return SimpleNamespace(returncode=7)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    return found


def test_ray_s_commands_get_address_and_token_and_their_exit_code_counts(ran: list[Any]) -> None:
    write_cell(OURS)
    assert find_cell().name == "mine"
    assert main(["ray", "--", "status", "-v"]) == 7
    ((words, environment),) = ran
    assert words == ["status", "-v"]
    assert environment["RAY_ADDRESS"] == "127.0.0.1:6379"
    assert environment["RAY_AUTH_MODE"] == "token"
    assert environment["RAY_AUTH_TOKEN_PATH"].endswith("/ray_token")
    assert "RAY_ADDRESS" not in os.environ


def test_a_cluster_of_others_is_asked_with_the_user_s_own_token(ran: list[Any]) -> None:
    write_cell(replace(OURS, ray_pid=0, ray_address="head:6379"))
    assert main(["ray", "status"]) == 7
    assert main(["ray", "--", "list", "actors"]) == 7, "whether it has a dashboard is not known"
    assert {environment["RAY_ADDRESS"] for _, environment in ran} == {"head:6379"}
    assert not [
        environment
        for _, environment in ran
        if environment.get("RAY_AUTH_TOKEN_PATH", "").endswith("/ray_token")
    ]


def test_what_would_end_others_processes_or_ask_nobody_is_refused(
    ran: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    write_cell(OURS)
    for words, code, said in (
        (["--", "stop"], 2, "`dspark down` ends the cell"),
        (["--"], 2, "dspark ray -- status"),
        (["--", "list", "actors"], 1, "`dspark up --dashboard`"),
    ):
        assert main(["ray", *words]) == code
        assert said in capsys.readouterr().err
    assert not ran
    write_cell(replace(OURS, dashboard="http://127.0.0.1:8265"))
    assert main(["ray", "--", "list", "actors"]) == 7
    assert ran[0][1]["RAY_API_SERVER_ADDRESS"] == "http://127.0.0.1:8265"


def test_inside_a_job_the_job_s_cluster_is_joined(
    golden_target: Path, golden_drafter: Path, write: Write
) -> None:
    models = {"target": str(golden_target), "drafter": str(golden_drafter)}

    def address(environ: dict[str, str], **flags: object) -> str | None:
        return read_config(file=file, environ=environ, flags={**models, **flags}).address

    file = None
    assert address({}) is None
    assert address({"RAY_ADDRESS": "10.0.0.1:6379"}) == "10.0.0.1:6379"
    assert address({"RAY_ADDRESS": "10.0.0.1:6379"}, address="head:1") == "head:1"
    for other in ("auto", "local", "http://10.0.0.1:8265", "ray://10.0.0.1:10001"):
        assert address({"RAY_ADDRESS": other}) is None
    file = write("cluster: {address: 'mine:1'}\n")
    assert address({"RAY_ADDRESS": "10.0.0.1:6379"}) == "mine:1"
