"""Policies in turns: who stays, what a ratio is, and that a run goes on where it stopped."""

import asyncio
import json
from pathlib import Path

import pytest

from benchmarks.turns import ADAPTIVE, BASELINES, SavedMeasurements, Tournament
from dspark.errors import InvalidRequest

SPEED = {"off": 50.0, "fixed:5": 100.0, "fixed:6": 96.0, "adaptive": 104.0}


class Bench:
    """Known rates; every turn the machine is a little slower, for everybody."""

    def __init__(self, fails_after: int = 10**9) -> None:
        self.asked: list[tuple[str, int]] = []
        self._fails_after = fails_after

    async def rate(self, policy: str, load: int) -> float:
        if len(self.asked) >= self._fails_after:
            raise RuntimeError("the machine went away")
        self.asked.append((policy, load))
        return SPEED.get(policy, 40.0) * 0.98 ** len(self.asked)


def _run(bench: Bench, book: SavedMeasurements) -> dict[str, dict[str, object]]:
    return asyncio.run(Tournament("part", bench.rate, book, 3).run([8]))


def test_the_far_behind_leave_after_a_turn_and_the_adaptive_one_stays() -> None:
    bench = Bench()
    point = _run(bench, SavedMeasurements(None, {}))["8"]
    times = [policy for policy, _ in bench.asked]
    assert len(times) == len(BASELINES) + 1 + 2 * 3
    assert times.count("off") == 1
    assert times.count("fixed:6") == times.count("adaptive") == 3
    assert point["rival"] == "fixed:5"
    first, second = times[: len(BASELINES) + 1], times[len(BASELINES) + 1 :][:3]
    assert first == [*BASELINES, ADAPTIVE]
    assert second == ["adaptive", "fixed:6", "fixed:5"]  # backwards


def test_a_run_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    file, settings = tmp_path / "book.jsonl", {"quick": True, "answers": (24, 72), "work": {1: 6}}
    with pytest.raises(RuntimeError):
        _run(Bench(fails_after=10), SavedMeasurements(file, settings))
    assert len(file.read_text().splitlines()) == 11  # and the settings
    rest = Bench()
    point = _run(rest, SavedMeasurements(file, settings))["8"]
    assert len(rest.asked) == 15 - 10
    assert json.dumps(point) == json.dumps(
        _run(Bench(fails_after=0), SavedMeasurements(file, settings))["8"]
    )
    with pytest.raises(InvalidRequest, match="save"):
        SavedMeasurements(file, {"quick": False})
