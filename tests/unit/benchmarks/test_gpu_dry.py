"""The GPU benchmark with a toy shape on a processor: every part that needs no other process runs and keeps its rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import gpu, gpu_steps


@pytest.mark.parametrize("part", ["steps", "engines"])
def test_a_part_runs_on_a_processor(part: str, tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    assert gpu.main(["--tiny", "--only", part, "--json", "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())
    assert row["row"] == f"B7 {part}"
    assert row["holds"] is None, "a toy shape says nothing of speed"
    if part == "steps":
        lines = row["value"]["lines"]
        assert {line["part"] for line in lines} == {"step", "draft", "rule"}
        steps = {(line["sequences"], line["tokens"]) for line in lines if line["part"] == "step"}
        assert steps == {(count, count * each) for count in gpu_steps.TINY_SEQUENCES for each in gpu_steps.TOKENS}
        assert all(line["ms"] > 0 for line in lines)
        assert (tmp_path / "gpu.md").read_text().count("\n") == len(lines) + 2


def test_a_part_ends_when_its_time_is_over(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    assert gpu.main(["--tiny", "--only", "steps", "--part-s", "0", "--out", str(out)]) == 0
    assert json.loads(out.read_text())[0]["value"]["lines"] == []
