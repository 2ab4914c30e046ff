"""The tests notice bugs that are put in: some of them here, all by `make mutants`."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.mutation.bugs import BUGS, ROOT, node


def _tried(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.mutation", "--json", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1780
    )
    assert done.stdout, done.stderr[-2000:]
    value: dict[str, Any] = json.loads(done.stdout)["value"]
    assert value["missed"] == [], [line for line in done.stderr.splitlines() if "MISSED" in line]
    return value


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_bugs_are_caught() -> None:
    assert _tried("--every=30")["bugs"] >= 9


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "words",
    [
        ["--list=conformance"],
        ["--list=promises", "--only=another,shown"],
    ],
    ids=" ".join,
)
def test_bugs_of_what_is_served_are_caught(words: list[str]) -> None:
    """All that `dspark conformance` has to find, and some that break a promise."""
    assert _tried(*words)["bugs"] >= 2


def test_every_bug_finds_its_line_and_its_tests() -> None:
    for bug in BUGS:
        bug.changed()
        assert bug.harmless or all(map(node, bug.by)), bug.name


def test_every_bug_has_a_name_of_its_own() -> None:
    names = [bug.name for bug in BUGS]
    assert [name for name in names if names.count(name) > 1] == []
