"""The GPU benchmark with a toy shape on a processor: every part that needs no other process runs
and keeps its rows."""

import gc
import json
import weakref
from pathlib import Path
from typing import Any

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
        assert steps == {
            (count, count * each) for count in gpu_steps.TINY_SEQUENCES for each in gpu_steps.TOKENS
        }
        assert all(line["ms"] > 0 for line in lines)


def test_a_part_ends_when_its_time_is_over(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    assert gpu.main(["--tiny", "--only", "steps", "--part-s", "0", "--out", str(out)]) == 0
    assert json.loads(out.read_text())[0]["value"]["lines"] == []


def test_engines_that_hold_themselves_are_gone_when_their_part_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[weakref.ref[Any]] = []
    real = gpu._engines

    def engines(*args: Any) -> Any:
        pair = real(*args)
        pair.itself = pair  # type: ignore[attr-defined]  # as a runner with recordings does
        made.append(weakref.ref(pair))
        return pair

    monkeypatch.setattr(gpu, "_engines", engines)
    gc.disable()
    try:
        gpu.main(["--tiny", "--only", "steps", "--part-s", "0"])
        assert [each() for each in made] == [None]
    finally:
        gc.enable()


def test_a_part_that_fails_loses_nothing_of_itself_and_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object, **more: object) -> None:
        raise RuntimeError("no room on this card")

    what, bar, _, held = gpu.PARTS["served"]
    monkeypatch.setitem(gpu.PARTS, "served", (what, bar, fail, held))
    monkeypatch.setattr(gpu_steps, "drafts", fail)
    out = tmp_path / "gpu.json"
    assert gpu.main(["--tiny", "--json", "--out", str(out)]) == 1
    rows = json.loads(out.read_text())
    assert [(row["row"], row["holds"]) for row in rows] == [
        ("B7 steps", False), ("B7 served", False), ("B7 engines", None),
    ]  # fmt: skip
    assert [row["value"].get("error") for row in rows] == [
        "RuntimeError: no room on this card"
    ] * 2 + [None]
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert len(rows[0]["value"]["lines"]) == len(gpu_steps.TINY_SEQUENCES) * len(gpu_steps.TOKENS)
