"""The comparison with other programs runs whole on a tiny pair, with those that are installed."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers.__main__ import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def _this_process_stays_as_it_was() -> Iterator[None]:
    cores, handler = os.sched_getaffinity(0), signal.getsignal(signal.SIGTERM)
    yield
    os.sched_setaffinity(0, cores)
    signal.signal(signal.SIGTERM, handler)


def test_everybody_gives_the_ids_of_transformers(
    golden_target: Path,
    golden_drafter: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DSPARK_VERIFY__MEASURE_COST", "false")
    target, drafter = str(golden_target), str(golden_drafter)
    pair = ["--target", target, "--drafter", drafter, "--assistant", target]
    shape = ["--repetitions", "2", "--prompts", "1", "--tokens", "16", "--streams", "1,3", "--json"]
    assert main([*pair, *shape, "--vllm-python", "/nowhere/python"]) == 0
    one, three = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert one["holds"] is three["holds"] is True
    assert set(one["value"]["over"]) == {
        "dspark off",
        "transformers generate",
        "transformers prompt lookup",
        "transformers assisted",
    }
    # who knows batches
    assert set(three["value"]["over"]) == {
        "dspark off",
        "transformers generate",
    }
    for row in (one, three):
        value = row["value"]
        assert set(value["same_ids"].values()) == {1.0}
        assert min(value["tok_s"].values()) > 0
        assert value["tokens_a_round"]["dspark off"] == 1.0
        assert all(why.startswith("peer not installed") for name, why in value["absent"].items())
        assert {"vllm float32", "vllm bfloat16", "llama.cpp"} <= set(value["absent"])
