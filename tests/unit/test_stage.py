"""A stage of the tests forgives what fails beside others only, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import stage

CROWDED = "def test_crowded(request):\n    assert not hasattr(request.config, 'workerinput')\n"
BROKEN = "def test_broken():\n    assert False\n"
SOUND = "def test_sound():\n    pass\n"


@pytest.mark.parametrize(
    ("files", "status", "told"),
    [
        ([SOUND, CROWDED], 0, "1 failed beside others, run again alone: green"),
        ([CROWDED, BROKEN], 1, "2 failed beside others, run again alone: red"),
    ],
)
def test_what_fails_alone_as_well_is_red(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], files: list[str], status: int, told: str
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow: none here\n")
    for number, text in enumerate(files):
        (tmp_path / f"test_{number}.py").write_text(text)
    found = stage.run([], cwd=tmp_path)
    assert bool(found) == bool(status)
    assert told in capfd.readouterr().out


def test_more_failures_than_crowding_explains_are_red_at_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "CROWDED_AT_MOST", 1)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow: none here\n")
    for number in range(2):
        (tmp_path / f"test_{number}.py").write_text(CROWDED)
    assert stage.run([], cwd=tmp_path) == 1
    assert "run again" not in capfd.readouterr().out
