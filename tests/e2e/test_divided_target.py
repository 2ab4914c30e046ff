"""A target over several devices: its ranks are processes here, which meet as they do on cards."""

import os
import signal
import sys
from pathlib import Path

import pytest

from deploy.processes import ProcessCell
from dspark.client import Completion
from tests.faults.oracle import plain_greedy
from tests.waiting import wait_until

PROMPTS = [[5, 9, 17, 33], list(range(2, 90)), [100, 3, 100, 3, 100, 3, 64]]
TOKENS = 40

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")


def ranks_of(pid: int) -> list[int]:
    """Process ids of the other ranks of a verifier."""
    lists = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/children")]
    return [
        int(child)
        for child in " ".join(lists).split()
        if b"verify_service.rank" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def test_a_divided_target_answers_like_a_whole_one_and_ends_with_any_of_its_ranks(
    golden_target: Path, golden_drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSPARK_HOME", str(tmp_path / "home"))
    plain = plain_greedy(golden_target, PROMPTS, TOKENS)
    options = {"max_tokens": TOKENS, "temperature": 0.0, "ignore_eos": True}
    with (
        ProcessCell(
            golden_target,
            golden_drafter,
            verifiers=2,
            verify={"tensor_parallel_size": 2, "cost_max_tokens": 8},
            draft={"measure_cost": False},
            folder=tmp_path,
        ) as cell,
        cell.client() as client,
    ):
        hurt, killed = (cell.children[f"verify/{number}"] for number in (0, 1))
        (rank,), (orphan,) = ranks_of(hurt.pid), ranks_of(killed.pid)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(orphan, number)  # they reach the whole group, and rank 0 ends in order
        asked = [(policy, at) for policy in ("off", "fixed:7", "adaptive") for at in range(3)]
        streams = [client.generate(PROMPTS[at], policy=policy, **options) for policy, at in asked]
        begun = [next(stream) for stream in streams]
        os.kill(rank, signal.SIGKILL)
        for (_, at), first, stream in zip(asked, begun, streams, strict=True):
            assert list(Completion.of([first, *stream]).token_ids) == plain[at]
        wait_until(lambda: hurt.process.poll() is not None)
        assert hurt.process.returncode == 1
        assert "verify.ranks_lost" in hurt.log.read_text()
        assert ranks_of(killed.pid) == [orphan]
        killed.process.kill()
        wait_until(lambda: not Path(f"/proc/{orphan}").exists())
