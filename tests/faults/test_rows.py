"""The table of rows names programs that are there, each beside its document."""

import asyncio
import importlib
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from tests.faults import __main__ as runner
from tests.faults import report
from tests.faults.rows import r08_overload
from tests.faults.rows.program import quantile, statement
from tests.faults.rows.table import LONG, QUICK, Entry

ROWS = Path(__file__).parent / "rows"


def test_every_program_is_in_the_table_and_the_other_way_round() -> None:
    programs = {path.stem for path in ROWS.glob("r[0-9]*.py")}
    assert {entry.words.split()[0] for entry in (*QUICK, *LONG)} == programs
    for name in programs:  # what they take from other tests is there
        importlib.import_module(f"tests.faults.rows.{name}")


def test_the_document_says_what_was_saved() -> None:
    text = report.PAGE.read_text(encoding="utf-8")
    assert text == report.page(), "run python -m tests.faults.report"
    told = set(re.findall(r"^\| (\d+) \|", text, re.MULTILINE))
    assert {entry.row for entry in (*QUICK, *LONG)} == told


def test_a_value_is_told_without_what_is_empty() -> None:
    value = {
        "kills": 48,
        "problems": [],
        "p99_s": 0.0361,
        "by_kind": {"open": 1200, "late": 0},
        "freed": True,
    }
    assert report.told(value) == "kills 48, p99 s 0.0361, by kind (open 1,200, late 0), freed yes"


def test_rows_are_saved_and_take_the_place_of_older_ones(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    first, second = (
        json.dumps({"row": "1", "name": name, "value": 1, "bar": "", "holds": True})
        for name in "ab"
    )
    one, two = Entry("r01_one", 1.0), Entry("r01_two --long", 1.0)
    runner.save(path, [runner.Ended(one, [first], 0), runner.Ended(two, [first], 0)], ["--long"])
    runner.save(path, [runner.Ended(two, [second], 0)], [])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["name"], row["program"]) for row in rows] == [
        ("a", "r01_one"),
        ("b", "r01_two --long"),
    ]
    assert all({"command", "commit", "machine", "date"} <= row.keys() for row in rows)


def test_a_statement_holds_where_every_bar_does_and_others_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert statement("9", "a name", 1, {"one": True, "two": 3}).holds is True
    assert capsys.readouterr().err == ""
    row = statement("9", "a name", 1, {"one": True, "two": 0, "three": []})
    assert (row.bar, row.holds) == ("one; two; three", False)
    assert capsys.readouterr().err == "row 9 misses: two\nrow 9 misses: three\n"
    assert statement("9", "a name", 1, {"p99 of nothing": quantile([], 0.99) <= 1.0}).holds is False


@pytest.mark.parametrize(
    ("words", "patience", "said"),
    [
        ("r24_retry_storm", 0.001, "missing: the program took longer than"),
        ("r99_no_such_row", runner.PATIENCE, "missing: the program ended with status 1"),
    ],
)
def test_a_program_that_takes_too_long_or_gives_no_row_is_told_as_missing(
    words: str,
    patience: float,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "PATIENCE", patience)
    (ended,) = runner.run([Entry(words, 15.0)])
    row = json.loads(capsys.readouterr().out)
    assert (ended.status != 0, row["row"], row["holds"]) == (True, words[1:3], False)
    assert said in row["value"]["error"]


def test_a_cell_that_refuses_for_good_is_not_back_after_a_flood(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = SimpleNamespace(sent=1.0, ended=1.001, error="Overloaded")
    told = AsyncMock(return_value=SimpleNamespace(answers=[refused]))
    monkeypatch.setattr(r08_overload, "loaded", told)
    assert asyncio.run(r08_overload._alone(None, 1)) == math.inf
