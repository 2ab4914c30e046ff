"""Rows on disk: whatever byte a writer was killed at, whole rows stay and the next writer goes
on."""

import json
from pathlib import Path

import pytest

from dspark.errors import ConfigError
from dspark.training.disk import read_rows, row_file

ROWS = [
    {"id": "a", "text": "one\ntwo"},
    {"id": "b", "text": "\u00e4\u2028"},
    {"id": "c", "n": [1, 2], "half": "\ud83d"},
]


def test_a_file_cut_at_any_byte_goes_on_with_the_next_row(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    with row_file(path) as append:
        for row in ROWS:
            append(row)
        content = path.read_bytes()
    ends = [n + 1 for n, byte in enumerate(content) if byte == ord("\n")]
    assert len(ends) == len(ROWS)
    for cut in range(len(content) + 1):
        path.write_bytes(content[:cut])
        whole = sum(end <= cut for end in ends)
        with row_file(path) as append:
            assert path.read_bytes() == content[: ends[whole - 1] if whole else 0]
            assert list(read_rows(path)) == ROWS[:whole]
            for row in ROWS[whole:]:
                append(row)
        assert path.read_bytes() == content


def test_a_long_torn_row_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    torn = json.dumps({"id": "b", "text": "x" * 200_000})[:-1]
    path.write_text('{"id": "a"}\n' + torn, encoding="utf-8")
    with row_file(path):
        pass
    assert path.read_text(encoding="utf-8") == '{"id": "a"}\n'


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with row_file(path), pytest.raises(ConfigError, match="another process"), row_file(path):
        pass
    with row_file(path) as append:
        append(ROWS[0])


def test_a_broken_line_inside_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 1}\n{"id": \n{"id": 3}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"rows.jsonl:2"):
        list(read_rows(path))
    path.write_text('{"id": 1}\n[1]\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"rows.jsonl:2: expected a JSON object"):
        list(read_rows(path))


def test_a_last_line_of_anothers_making_needs_no_line_break(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": 1}\n{"id": 2}', encoding="utf-8")
    assert [row["id"] for row in read_rows(path)] == [1, 2]
