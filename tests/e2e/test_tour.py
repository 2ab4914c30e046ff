"""The tour runs on the shipped pair, says what it promises, and its page in docs has every plot."""

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tour(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program, found as `python examples/tour.py` finds it."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return importlib.import_module("tour")


def checked(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [int(n) for n in re.findall(r"^## (\d)\.", text, re.MULTILINE)] == list(range(1, 9))
    assert "the very tokens of plain decoding" in text
    assert "and said the same" in " ".join(text.split())
    pictures = re.findall(r"!\[\w+\]\(([\w./-]+)\)", text)
    assert len(pictures) == 3
    assert all((page.parent / name).stat().st_size > 2000 for name in pictures)


def test_the_rendered_page_is_whole() -> None:
    checked(ROOT / "docs" / "tour.md")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_hasty_tour(tour: ModuleType, tmp_path: Path) -> None:
    checked(tour.run(tmp_path, tokens=16, rows=1, steps=3))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.timeout(900)
def test_the_whole_tour(tour: ModuleType, tmp_path: Path) -> None:
    checked(tour.run(tmp_path))
