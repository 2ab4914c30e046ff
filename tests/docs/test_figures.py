"""Figures in the pages are those of the result files.

A figure is tied to its file by a link, `[1.70](results/peers.json "0/value/over/vllm float32")`:
the link's title is the way to the number, by keys and places in lists; a file of several JSON lines
is a list of them. What stands in the brackets must be that number rounded to as many decimals; with
% a hundredfold of it, with GB behind it a billionth.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import PAGES, ROOT

RESULTS = ROOT / "benchmarks" / "results"
EVERY = [*PAGES, ROOT / "ARCHITECTURE.md"]
TIED = re.compile(r'\[([^\]]+)\]\(([^)\s]+\.json) "([^"]+)"\)(\s*GB)?')
NAMED = re.compile(r"[\w/.-]*?([\w-]+\.json)")


def _read(file: Path) -> Any:
    text = file.read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]


def _at(document: Any, way: str) -> float:
    for step in way.split("/"):
        document = document[int(step)] if isinstance(document, list) else document[step]
    assert isinstance(document, int | float), f"{way} is {document!r}, which is no number"
    return document


def disagreements(page: Path) -> list[str]:
    """One line for each tied figure that is not what its file says."""
    wrong = []
    for said, link, way, gigabytes in TIED.findall(page.read_text(encoding="utf-8")):
        number, percent = re.subn(r"\s*%$", "", said)
        number = number.replace(",", "")
        value = (
            _at(_read((page.parent / link).resolve()), way)
            * (100 if percent else 1)
            / (1e9 if gigabytes else 1)
        )
        decimals = len(number.partition(".")[2])
        if f"{value:.{decimals}f}" != number.removeprefix("+"):
            wrong.append(f"{page.name}: {said} stands where {link} says {value} at {way}")
    return wrong


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in EVERY]
)
def test_a_tied_figure_is_what_its_file_says(page: Path) -> None:
    assert not disagreements(page)


def test_every_figure_of_a_column_of_figures_is_tied() -> None:
    loose, seen = [], 0
    for page in EVERY:
        column = None
        for line in page.read_text(encoding="utf-8").splitlines():
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
            if not line.startswith("|"):
                column = None
            elif "figure" in cells:
                column = cells.index("figure")
            elif column is not None and re.search(
                r"\d", TIED.sub("", re.sub("`[^`]*`", "", cells[column]))
            ):
                loose.append(f"{page.relative_to(ROOT)}: {cells[column]}")
            seen += column is not None
    assert seen
    assert loose == []


def test_every_result_file_has_a_page_or_its_program_and_every_cited_one_is_there() -> None:
    there = {file.name for file in RESULTS.glob("*.json")}
    named: set[str] = set()
    for page in [*EVERY, *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        named |= set(NAMED.findall(text))
        cited = set(re.findall(r"results/([\w-]+\.json)", text))
        assert cited <= there, f"{page.name} cites {sorted(cited - there)}"
    programs = tuple(file.stem for file in RESULTS.parent.glob("*.py"))
    assert [name for name in sorted(there - named) if not name.startswith(programs)] == []


def test_an_altered_figure_is_seen(tmp_path: Path) -> None:
    file, page = tmp_path / "rates.json", tmp_path / "page.md"
    file.write_text(
        '{"value": {"vllm": 1.6996, "share": 0.1727, "bytes": 375255040, "steps": [{"n": 78614}]}}'
    )
    sound = (
        '[1.70](rates.json "value/vllm") [17 %](rates.json "value/share") [0.38](rates.json '
        '"value/bytes") GB '
        '[78,614](rates.json "value/steps/0/n")'
    )
    page.write_text(sound)
    assert disagreements(page) == []
    for before, after in (
        ("1.70", "1.71"),
        ("17 %", "18 %"),
        ("0.38", "0.37"),
        ("78,614", "78,615"),
    ):
        page.write_text(sound.replace(before, after))
        (line,) = disagreements(page)
        assert after in line
