"""The tests notice bugs that are put in: some of them here, all by `make mutants`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.promises import PROMISES
from tests.mutation import bugs
from tests.mutation.bugs import BUGS, LISTS, ROOT, node


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
    ("words", "count"),
    [
        (["--list=conformance"], 6),
        (["--list=promises", "--only=another,shown"], 4),
    ],
)
def test_bugs_of_what_is_served_are_caught(words: list[str], count: int) -> None:
    """All that `dspark conformance` has to find, and some that break a promise."""
    assert _tried(*words)["bugs"] == count


def test_every_bug_finds_its_line_and_its_tests() -> None:
    for bug in BUGS:
        compile(bug.changed(), bug.file, "exec")
        assert bug.harmless or bug.by, bug.name
        assert all(map(node, bug.by))


def test_no_bug_goes_into_a_file_that_pytest_loads_itself(pytestconfig: pytest.Config) -> None:
    """Its import hook stands before ours, and takes what is named like a test."""
    tests = pytestconfig.getini("python_files")
    assert [bug.name for bug in BUGS if any(Path(bug.file).match(each) for each in tests)] == []


def test_builds_break_promises_that_are_told() -> None:
    told = {f"test_a_promise_is_kept[{name}]" for name in PROMISES}
    assert {name for bug in LISTS["promises"] for name in bug.by} <= told


def test_a_test_that_two_files_have_is_named_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bugs, "_nodes", lambda: {"test_it": ["a.py::test_it", "b.py::test_it"]})
    with pytest.raises(ValueError, match="too many"):
        node("test_it[4]")


def test_every_bug_has_a_name_of_its_own() -> None:
    names = [bug.name for bug in BUGS]
    assert [name for name in names if names.count(name) > 1] == []


_TRIED = """
from dataclasses import replace
from tests.mutation.bugs import BUGS
from tests.mutation.runner import outcomes

bug = next(bug for bug in BUGS if bug.name == "a token that its q cannot give may be kept")
idle = replace(bug, lines=bug.lines | {"+": bug.lines["-"]})
unreadable = replace(bug, lines=bug.lines | {"+": ["("]})
in_files = replace(unreadable, by=["test_judge_at_once.py", "test_philox.py"])
print([each.caught for each in outcomes([bug, idle, unreadable, in_files], jobs=1)])
"""


def test_what_changes_nothing_or_cannot_be_read_is_no_catch() -> None:
    command = [sys.executable, "-c", _TRIED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[True, False, False, False]\n"
