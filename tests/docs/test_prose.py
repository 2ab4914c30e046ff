"""No paragraph is longer than six lines of 120 columns, no table wider than six columns."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT

EVERY = [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]
LINES, COLUMNS, WIDTH = 6, 6, 120
_FENCED = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(
    r"`((?:benchmarks|coordinator|deploy|draft_service|dspark|examples|tests|verify_service)/[\w/.-]+\.\w+)`"
)
_ITEM = re.compile(r"\n(?=\s*(?:[*-]|\d+\.)\s)")


def paragraphs(text: str) -> Iterator[str]:
    """Paragraphs and items of lists, without links' targets; tables and code are none."""
    for block in re.split(r"\n\s*\n", _FENCED.sub("", text)):
        if any(line.lstrip().startswith("|") for line in block.splitlines()):
            continue
        for item in _ITEM.split(block.strip()):
            yield re.sub(r"\]\([^)]*\)", "]", " ".join(item.split()))


def too_long(text: str) -> list[str]:
    return [each[:60] for each in paragraphs(text) if len(textwrap.wrap(each, WIDTH)) > LINES]


def too_wide(text: str) -> list[str]:
    rows = [
        line.strip().strip("|")
        for line in _FENCED.sub("", text).splitlines()
        if line.lstrip().startswith("|")
    ]
    return [row[:60] for row in rows if len(re.split(r"(?<!\\)\|", row)) > COLUMNS]


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in EVERY]
)
def test_a_page_is_read_in_pieces(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert too_long(text) == []
    if page.parent.name != "reference":
        assert too_wide(text) == []


def test_a_wall_and_a_wide_table_are_seen() -> None:
    assert too_long("word " * 200)
    assert not too_long("word " * 100)
    assert too_wide("| a | b | c | d | e | f | g |")
    assert not too_wide("| a | b | c | d | e | f |")


def test_the_words_of_the_project_are_few() -> None:
    table = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8").partition("## Words")[2]
    words = re.findall(r"^\| ([a-z ]+) \|", table, re.MULTILINE)[1:]
    assert words == sorted(words)
    assert 15 < len(words) <= 25


@pytest.mark.parametrize("page", EVERY, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_are_there(page: Path) -> None:
    named = set(_FILE.findall(page.read_text(encoding="utf-8")))
    assert [name for name in sorted(named) if not (ROOT / name).exists() and "NN" not in name] == []
