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
from tests.broken.planting import Build, planted
from tests.mutation.conformance import CONFORMANCE
from tests.mutation.mutant import Mutant
from tests.unit.cli.test_conformance import a_few_cases

ROOT = Path(__file__).resolve().parents[2]


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


@pytest.mark.parametrize("mutant", CONFORMANCE, ids=lambda mutant: mutant.name)
def test_conformance_finds_every_broken_build_of_what_is_served(
    mutant: Mutant, tmp_path: Path
) -> None:
    a_few_cases("dspark_vanilla", tmp_path)
    line = Build(mutant.name, "", "", mutant.file, mutant.right, mutant.wrong)
    with planted(line):
        assert (conformance.run(tmp_path) != 0) is not bool(mutant.harmless)


def test_every_bug_finds_its_line() -> None:
    from tests.mutation.mutants import MUTANTS
    from tests.mutation.runner import changed

    for mutant in MUTANTS:
        changed(mutant)
    assert len(CONFORMANCE) >= 7


def test_every_bug_has_a_name_of_its_own() -> None:
    from tests.mutation.mutants import MUTANTS

    names = [mutant.name for mutant in MUTANTS]
    assert [name for name in names if names.count(name) > 1] == []
