"""Cells as guests of one Ray cluster: refused by name where no node can hold them, and kept apart from each other."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.head import Head, start_head, stop_head
from deploy.process_tags import new_cell_id

pytestmark = pytest.mark.ray

FILE = Path(__file__).parents[2] / "benchmarks" / "synthetic" / "flat.yaml"
UP = ("up", "--engine", "synthetic", "--synthetic", str(FILE), "--http", "none")
LIMIT_S = 240


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Head, dict[str, str]]]:
    """A cluster of others, and what programs need in their environment to reach it."""
    environment = dict(os.environ)
    head = start_head(tmp_path_factory.mktemp("host") / "ray_token", new_cell_id(), environment, lambda head: None)
    try:
        yield head, {**environment, "RAY_ADDRESS": head.address}
    finally:
        assert stop_head(head) == []


class Guest:
    """A user of that cluster with a state folder of their own."""

    def __init__(self, host: tuple[Head, dict[str, str]], folder: Path) -> None:
        self._environment = {**host[1], "DSPARK_HOME": str(folder)}

    def run(self, *words: str, code: int = 0) -> str:
        """What it said: on stdout, or why it failed."""
        ran = subprocess.run(self._command(words), capture_output=True, text=True, timeout=LIMIT_S, **self._options)
        assert ran.returncode == code, ran.stdout + ran.stderr
        return ran.stderr if code else ran.stdout

    def begin(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(self._command(words), stdout=subprocess.PIPE, text=True, **self._options)

    def names(self) -> set[str]:
        return {process["name"] for process in json.loads(self.run("status", "--json"))["processes"]}

    @property
    def _options(self) -> dict[str, Any]:
        return {"env": self._environment}

    def _command(self, words: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "dspark.cli.main", *words]


def test_a_pool_that_no_node_can_hold_is_refused_by_what_is_missing(
    host: tuple[Head, dict[str, str]], tmp_path: Path
) -> None:
    guest = Guest(host, tmp_path)
    said = guest.run(*UP, "--verifiers", "2", "--verifier-gpus", "1", code=1)
    last = said.strip().splitlines()[-1]
    assert re.fullmatch(r"dspark: verify/\d cannot be placed: no node with 1 GPU free: 2 wanted, 0 there", last)
    assert "no cluster is running here" in guest.run("status", code=1), "nothing is left behind"


def test_two_cells_of_one_cluster_keep_apart(host: tuple[Head, dict[str, str]], tmp_path: Path) -> None:
    one, other = Guest(host, tmp_path / "one"), Guest(host, tmp_path / "other")
    one.run(*UP)
    try:
        assert "already runs a cell named 'dspark'" in other.run(*UP, code=1)
        staying = other.begin(*UP, "--cell", "other", "--drafters", "0", "--block")
        try:
            assert staying.stdout is not None
            assert staying.stdout.readline().strip(), "it serves"
            assert one.names() == {"coordinator/0", "verify/0", "draft/0"}
            assert other.names() == {"coordinator/0", "verify/0"}
            (used, there) = re.findall(r"([\d.]+)/([\d.]+) CPU", one.run("ray", "--", "status"))[0]
            assert 0 < float(used) <= float(there)
            one.run("down", "--now")
            assert len(other.run("generate", "--token-ids", "5,9", "--max-tokens", "4", "--ignore-eos").split()) == 4
        finally:
            staying.send_signal(signal.SIGTERM)
            staying.communicate(timeout=LIMIT_S)
            assert staying.returncode == 0, "a signal takes the cell down"
        assert "no cluster is running here" in other.run("status", code=1)
    finally:
        one.run("down", "--now")
