"""Cells as guests of one Ray cluster: refused by name where no node holds them, kept apart."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.head import start_head, stop_head
from deploy.process_tags import new_cell_id
from deploy.ray_environment import check_guarded, is_guarded
from dspark.client import find_cell
from dspark.client.cell import is_alive
from tests.commands import DSPARK, LIMIT_S, SYNTHETIC, dspark, run
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

UP = (*SYNTHETIC, "--http", "none")
LOAD = "--concurrency 2 --requests 4 --input-len 8 --output-len 16 --temperature 1"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A cluster of others: what programs need in their environment to reach it."""
    environment = dict(os.environ)
    head = start_head(
        tmp_path_factory.mktemp("host") / "ray_token", new_cell_id(), environment, lambda head: None
    )
    try:
        yield {**environment, "RAY_ADDRESS": head.address}
    finally:
        assert stop_head(head) == []


class Guest:
    """A user of that cluster with a state folder of their own."""

    def __init__(self, host: dict[str, str], folder: Path) -> None:
        self.environment = {**host, "DSPARK_HOME": str(folder)}

    def run(self, *words: str) -> str:
        return dspark(*words, environment=self.environment)

    def refused(self, *words: str) -> str:
        ran = run(*words, environment=self.environment)
        assert ran.returncode == 1, ran.stdout + ran.stderr
        return ran.stderr

    def begin(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*DSPARK, *words], stdout=subprocess.PIPE, text=True, env=self.environment
        )

    def processes(self) -> dict[str, dict[str, Any]]:
        return {
            each["name"]: each for each in json.loads(self.run("status", "--json"))["processes"]
        }


def test_a_local_cluster_refuses_whoever_shows_no_token(host: dict[str, str]) -> None:
    assert is_guarded(host["RAY_ADDRESS"]) is True
    check_guarded(host["RAY_ADDRESS"], insecure=False)


def test_a_pool_that_no_node_can_hold_is_refused_by_what_is_missing(
    host: dict[str, str], tmp_path: Path
) -> None:
    guest = Guest({**host, "DSPARK_CLUSTER__PLACE_TIMEOUT_S": "6"}, tmp_path)
    said = guest.refused(*UP, "--verifiers", "2", "--verifier-gpus", "1")
    last = said.strip().splitlines()[-1]
    assert re.fullmatch(
        r"dspark: verify/\d cannot be placed: no node with 1 GPU free: 2 wanted, 0 there", last
    )
    assert "no cluster is running here" in guest.refused("status"), "nothing is left behind"


def test_a_signal_while_processes_start_takes_them_back_and_the_next_cell_serves_a_load(
    host: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSPARK_HOME", str(tmp_path))
    guest = Guest(host, tmp_path)
    _interrupt_up(guest)
    assert "no cluster is running here" in guest.refused("status")
    # nobody of that name is left in the cluster
    front = guest.run(*UP, "--frontends", "1").strip()
    try:
        told = guest.processes()
        assert front == told["frontend/0"]["endpoint"] == find_cell().for_clients
        for where in ((), ("--endpoint", told["coordinator/0"]["endpoint"])):
            # by themselves clients ask the front end
            (point,) = json.loads(guest.run("bench", "--json", *where, *LOAD.split()))["points"]
            assert (point["answers"], point["errors"]) == (4, {})
            assert point["tau"] > 1.0
    finally:
        guest.run("down", "--now")


def test_two_cells_of_one_cluster_keep_apart(host: dict[str, str], tmp_path: Path) -> None:
    one, other = Guest(host, tmp_path / "one"), Guest(host, tmp_path / "other")
    one.run(*UP)
    try:
        assert "already runs a cell named 'dspark'" in other.refused(*UP)
        _meddle_with_the_state_of_an_earlier_cell(one, Guest(host, tmp_path / "stale"))
        staying = other.begin(*UP, "--cell", "other", "--drafters", "0", "--block")
        try:
            assert staying.stdout is not None
            assert staying.stdout.readline().strip(), "it serves"
            ours = one.processes()
            assert ours.keys() == {"coordinator/0", "verify/0", "draft/0"}
            assert other.processes().keys() == {"coordinator/0", "verify/0"}
            one.run("down", "--now")
            wait_until(lambda: not any(is_alive(each["pid"]) for each in ours.values()))
            asked = ("--token-ids", "5,9", "--max-tokens", "4", "--ignore-eos")
            assert len(other.run("generate", *asked).split()) == 4
        finally:
            staying.send_signal(signal.SIGTERM)
            staying.communicate(timeout=LIMIT_S)
            assert staying.returncode == 0, "a signal takes the cell down"
        assert "no cluster is running here" in other.refused("status")
        assert is_guarded(host["RAY_ADDRESS"]), "the cluster is not theirs to stop"
    finally:
        one.run("down", "--now")


def test_a_bad_checkpoint_surfaces_the_worker_s_sentence_and_cleans_up(
    host: dict[str, str], golden_target: Path, golden_drafter: Path, tmp_path: Path
) -> None:
    guest, broken = Guest(host, tmp_path / "home"), tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text((golden_drafter / "config.json").read_text())
    pair = ("--target", str(golden_target), "--drafter", str(broken))
    said = guest.refused("up", *pair, "--http", "none")
    last = said.strip().splitlines()[-1]
    assert last.startswith("dspark: ")
    assert "cannot start" in last
    assert "broken" in last
    assert "Traceback" not in said
    assert "no cluster is running here" in guest.refused("status")


def _meddle_with_the_state_of_an_earlier_cell(serving: Guest, stale: Guest) -> None:
    """Names come again, ids do not: what the earlier cell's owner says is not for this one."""
    there, here = (Path(each.environment["DSPARK_HOME"]) for each in (serving, stale))
    before = serving.processes()
    here.mkdir()
    for file in ("operator_token", "worker_token"):
        (here / file).write_text((there / file).read_text())
        (here / file).chmod(0o600)
    state = json.loads((there / "cell.json").read_text())
    (here / "cell.json").write_text(json.dumps({**state, "cell_id": "earlier"}))
    assert "another one by now" in stale.refused("scale", "draft=0")
    stale.run("down", "--now")
    assert "no cluster is running here" in stale.refused("status")
    assert serving.processes().keys() == before.keys()


def _interrupt_up(guest: Guest) -> None:
    up = subprocess.Popen([*DSPARK, *UP], stderr=subprocess.PIPE, text=True, env=guest.environment)
    try:
        assert up.stderr is not None
        assert any(re.match(r"\w+/0: ", line) for line in up.stderr), (
            "its controller tells of its processes"
        )
        up.send_signal(signal.SIGTERM)
        up.communicate(timeout=LIMIT_S)
        assert up.returncode == 130
    finally:
        up.kill()
