"""The site's table of contents names every page once, and nothing that is not there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pathspec import GitIgnoreSpec

from docs.site_hook import on_page_markdown

ROOT = Path(__file__).parents[2]


def _pages(nav: Any) -> Iterator[str]:
    for entry in nav:
        if isinstance(entry, str):
            yield entry
        else:
            for below in entry.values():
                yield from _pages(below if isinstance(below, list) else [below])


def test_every_page_is_in_the_contents_once() -> None:
    named = list(_pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    there = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(named) == sorted(there)


def test_programs_of_the_pages_are_no_part_of_the_site() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    left_out = GitIgnoreSpec.from_lines(config["exclude_docs"].splitlines())
    for path in ("site_hook.py", "reference/generate.py", "__pycache__/site_hook.cpython-311.pyc"):
        assert left_out.match_file(path)
    assert not left_out.match_file("reference/configuration.md")


@pytest.mark.parametrize(
    ("said", "shown"),
    [("```sh other\nls\n```", "```sh\nls\n```"), ("```python\nx", "```python\nx")],
)
def test_marks_behind_a_language_are_for_tests(said: str, shown: str) -> None:
    assert on_page_markdown(said) == shown
