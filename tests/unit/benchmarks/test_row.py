"""What every measurement prints."""

from __future__ import annotations

import json

import pytest

from benchmarks.row import Row


def test_a_row_that_fails_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert Row(5, "same", {"identical": 59}, "all", False).show(as_json=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert all(told.pop(key) for key in ("commit", "date", "machine"))
    assert told == {
        "row": 5,
        "name": "same",
        "value": {"identical": 59},
        "bar": "all",
        "holds": False,
    }
    assert Row(5, "same", 60, "all", True).show(as_json=False) == 0
    assert capsys.readouterr().out == "holds: same: 60 (bar: all)\n"
