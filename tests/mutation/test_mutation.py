"""The tests notice bugs that are put in.

Every broken build of what is served here, and every thirtieth of all bugs by the runner, in
processes of its own; all of them are `make mutants`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dspark.cli import conformance
from tests.broken.planting import planted
from tests.mutation.bugs import BUGS, LISTS, ROOT, Bug, node
from tests.unit.cli.test_conformance import a_few_cases


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


@pytest.mark.parametrize("bug", LISTS["conformance"], ids=lambda bug: bug.name)
def test_conformance_finds_every_broken_build_of_what_is_served(bug: Bug, tmp_path: Path) -> None:
    a_few_cases("dspark_vanilla", tmp_path)
    with planted(bug):
        assert (conformance.run(tmp_path) != 0) is not bool(bug.harmless)


def test_every_bug_finds_its_line_and_its_tests() -> None:
    for bug in BUGS:
        bug.changed()
        assert bug.harmless or all(map(node, bug.by)), bug.name
    assert len(LISTS["conformance"]) >= 7


def test_every_bug_has_a_name_of_its_own() -> None:
    names = [bug.name for bug in BUGS]
    assert [name for name in names if names.count(name) > 1] == []
