"""The tables of docs/reliability.md, made of the saved rows: `python -m tests.faults.report`.

What a row measured stands there as it was saved, so a figure cannot differ from its file; a test
compares both.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from tests.faults.__main__ import RESULTS
from tests.faults.pair import ROOT
from tests.faults.rows.table import LONG, QUICK, Entry

PAGE = ROOT / "docs" / "reliability.md"
TABLES = {"everyday": ("faults.json", QUICK), "long": ("faults_long.json", LONG)}
HEAD = "| row | what | engine | measured | bar | holds |\n| --- | --- | --- | --- | --- | --- |\n"
LEFT_OUT = {"engine", "seconds", "same_processes", "same_pids", "in_all", "harmless"}


def table(name: str) -> str:
    """One line for each statement of each program, those that were never run too."""
    file, entries = TABLES[name]
    lines = (RESULTS / file).read_text(encoding="utf-8").splitlines()
    saved = list(map(json.loads, lines))
    return HEAD + "".join(line for entry in entries for line in _lines(entry, saved))


def page() -> str:
    """The whole document, its tables made anew."""
    text = PAGE.read_text(encoding="utf-8")
    for name in TABLES:
        begin, end = f"<!-- {name} rows -->\n", f"<!-- end of {name} rows -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{table(name)}{end}{rest.partition(end)[2]}"
    return text


def _lines(entry: Entry, saved: Sequence[dict[str, Any]]) -> Iterator[str]:
    rows = [row for row in saved if row.get("program") == entry.words]
    if not rows:
        yield f"| {entry.row} | `{entry.words}` | | no run of this form is saved | | |\n"
    for row in rows:
        value = row["value"]
        engine = value.get("engine", "") if isinstance(value, dict) else ""
        measured = f"{told(value)} ({row['date']}, {row['commit']})"
        holds = "yes" if row["holds"] else "**no**"
        cells = (entry.row, row["name"], engine, measured, row["bar"], holds)
        yield f"| {' | '.join(map(str, cells))} |\n".replace("||", "| |")


def told(value: Any) -> str:
    """`kills 48, streams 192`, without what is empty or not measured."""
    if isinstance(value, dict):
        kept = {
            key: told(each)
            for key, each in value.items()
            if key not in LEFT_OUT and each not in ([], {}, "", None)
        }
        return ", ".join(
            f"{key.replace('_', ' ')} {_inside(value[key], text)}" for key, text in kept.items()
        )
    if isinstance(value, list):
        return "; ".join(map(told, value[:3])) + ("; ..." if len(value) > 3 else "")
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:.3g}"
        if isinstance(value, float)
        else str(value)
    )
    return text.replace("|", "\\|")


def _inside(value: Any, text: str) -> str:
    return f"({text})" if isinstance(value, dict | list) else text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
