"""Rows B2 and B3 run whole on a tiny pair: real peers where they are installed, a row that says so where not."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import single_stream, sixteen_streams

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def _this_process_stays_as_it_was() -> Iterator[None]:
    cores, handler = os.sched_getaffinity(0), signal.getsignal(signal.SIGTERM)
    yield
    os.sched_setaffinity(0, cores)
    signal.signal(signal.SIGTERM, handler)


def words(golden_target: Path, golden_drafter: Path) -> list[str]:
    pair = ["--target", str(golden_target), "--drafter", str(golden_drafter), "--json"]
    return [*pair, "--set", "verify.measure_cost=false", "--policy", "fixed:7", "--vllm-python", "/nowhere/python"]


def test_one_stream_gives_the_ids_of_transformers_on_pair_and_twin(
    golden_target: Path,
    golden_drafter: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shape = [
        "--repetitions",
        "1",
        "--prompts",
        "1",
        "--tokens",
        "16",
        "--times",
        "2",
        "--assistant",
        str(golden_target),
    ]
    single_stream.main([*words(golden_target, golden_drafter), *shape])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["row"] for row in rows] == ["B2 shipped", "B2 twin"]
    assert "twin" in rows[1]["name"]
    for row in rows:
        value = row["value"]
        assert row["holds"] is not True  # a peer is missing
        assert value["absent"]["vllm"].startswith("peer not installed")
        assert set(value["same_ids"].values()) == {"4 of 4"}
        for domain in value["domains"].values():
            # An assistant that is the target itself has every draft accepted, ours has some or none.
            assert domain["tau"]["transformers assisted"] > 2
            assert domain["tau"]["dspark fixed:7"] >= 1
            assert domain["ceiling_over_off"] > 0


def test_many_streams_are_compared_with_plain_decoding(
    golden_target: Path, golden_drafter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = ["--streams", "6", "--repetitions", "1", "--seconds", "3", "--tokens", "8"]
    sixteen_streams.main([*words(golden_target, golden_drafter), *shape])
    row = json.loads(capsys.readouterr().out)
    assert (row["row"], row["value"]["streams"]) == ("B3", 6)
    assert row["value"]["absent"]["vllm"].startswith("peer not installed")
    assert row["value"]["errors"] == {}
    for run in row["value"]["median_run"].values():
        assert run["tok_s"] > 0
