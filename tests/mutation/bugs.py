"""Bugs to put into the source, one at a time, and what has to notice each: lists are pages of text.

    # coordinator/lanes/lane.py            a file
    ## test_a_commit_is_written_first      what notices the bugs below; several have a line each
    a commit is written late               a bug, by its name
    - self._write()                        what stands in the file, exactly once
    + pass                                 what stands there instead; without such a line nothing
    ! why it cannot change output          of a bug that nobody has to notice

Lines before the first file say what the page is about. A test is named by its function, or by its
file alone; see `node`.
"""

import functools
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "tests" / "mutation" / "lists").glob("*.txt"))


@dataclass
class Bug:
    """One bug, as its lines are read."""

    name: str
    file: str
    by: list[str]
    lines: dict[str, list[str]] = field(default_factory=lambda: {"-": [], "+": [], "!": []})

    @property
    def right(self) -> str:
        return "\n".join(self.lines["-"])

    @property
    def wrong(self) -> str:
        return "\n".join(self.lines["+"])

    @property
    def harmless(self) -> str:
        return " ".join(self.lines["!"])

    @property
    def module(self) -> str:
        return self.file.removesuffix(".py").replace("/", ".")

    @property
    def source(self) -> str:
        """As it stands. Raises ValueError unless what the bug replaces is there once."""
        source = (ROOT / self.file).read_text(encoding="utf-8")
        if (places := source.count(self.right)) != 1:
            raise ValueError(f"{self.name}: {places} places in {self.file} hold {self.right!r}")
        return source

    def changed(self) -> str:
        """The source with the bug. Raises ValueError as above."""
        return self.source.replace(self.right, self.wrong)


def read(page: Path) -> list[Bug]:
    """The bugs of a page, in order."""
    bugs, file, by, above = list[Bug](), "", list[str](), ""
    for line in page.read_text(encoding="utf-8").splitlines():
        mark, _, said = line.partition(" ")
        if mark == "#":
            file = said
        elif mark == "##":
            by = [*by, said] if above == "##" else [said]
        elif mark in ("-", "+", "!"):
            bugs[-1].lines[mark].append(said)
        elif line and file:
            bugs.append(Bug(line, file, by))
        above = mark
    return bugs


def node(name: str) -> str:
    """What pytest calls it: `test_gumbel.py`, `test_a_time_is_a_logarithm`, `test_it_holds[4]`.
    Raises ValueError unless it is in one place."""
    test, bracket, case = name.partition("[")
    (found,) = _nodes()[test]
    return found + bracket + case


@functools.cache
def _nodes() -> dict[str, list[str]]:
    found = defaultdict[str, list[str]](list)
    for path in (ROOT / "tests").rglob("test_*.py"):
        file = str(path.relative_to(ROOT))
        text = path.read_text(encoding="utf-8")
        found[path.name].append(file)
        for name in re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE):
            found[name].append(f"{file}::{name}")
    return found


LISTS = {page.stem: read(page) for page in PAGES}
BUGS = [bug for bugs in LISTS.values() for bug in bugs]
