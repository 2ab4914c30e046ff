"""A bug to put into the source, and the tests that have to notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """Replaces one piece of source text that occurs exactly once."""

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]  # pytest node ids
    harmless: str = ""  # why it cannot change output, of one that no test has to notice


def caught_by(
    tests: tuple[str, ...], *bugs: tuple[str, str, str]
) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Bugs of one file that the same tests have to notice: name, right, wrong."""
    return [(*bug, tests) for bug in bugs]


def in_file(file: str, *bugs: tuple[str, str, str, tuple[str, ...]]) -> list[Mutant]:
    """Bugs of one file: name, right, wrong, tests."""
    return [Mutant(name, file, right, wrong, tests) for name, right, wrong, tests in bugs]


def harmless(name: str, file: str, right: str, wrong: str, why: str) -> Mutant:
    """A bug that cannot change output, and why: tried by hand, listed, and no test has to
    notice."""
    return Mutant(name, file, right, wrong, (), why)
