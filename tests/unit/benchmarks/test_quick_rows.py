"""Every statement of a short form is a row, also where its program ends before it has made them all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import quick
from benchmarks.row import Row


def _run(program: str, statements: int, capfd: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, object]]]:
    code = quick._run(quick.QuickProgram("3.0", program, statements, 20), 20.0)
    return code, [json.loads(line) for line in capfd.readouterr().out.splitlines()]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that prints one good row and then crashes."""
    row = Row("3.0", "first", 1, "is 1", True)
    text = f"import json\nprint(json.dumps({row.__dict__!r}))\nraise SystemExit(EXIT)\n"
    for name, code in (("sound", "0"), ("crashes", "'a traceback'")):
        (tmp_path / f"{name}.py").write_text(text.replace("EXIT", code), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "crashes"


def test_a_program_that_gives_all_it_owes_passes(program: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, rows = _run("sound", 1, capfd)
    assert code == 0
    assert [row["name"] for row in rows] == ["first"]


def test_what_a_crash_leaves_out_is_said_row_by_row(program: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, rows = _run(program, 3, capfd)
    assert code == 1
    assert [row["holds"] for row in rows] == [True, False, False]
    assert "statement 3 of 3 is missing: the program ended with status 1" in str(rows[2]["value"])
