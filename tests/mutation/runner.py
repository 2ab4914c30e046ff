"""Runs each bug's tests in a process of its own, forked after the slow imports, with the source
changed on import.

The files on disk are never touched. A bug is caught when its tests fail; tests that cannot be
collected or that do not end are no catch. The tests are first run once on the real source, where
they must pass.
"""

import gc
import importlib
import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any

from tests.mutation.bugs import BUGS, ROOT, Bug, node
from tests.mutation.import_hook import BugOnImport

LIMIT_S = 1200.0  # for one bug, or for the sound source; a loaded machine is no catch
ENDED = 40  # on top of pytest's exit codes, so that a crash is not taken for one
PASSED, FAILED, UNREADABLE = ENDED, ENDED + 1, ENDED + 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one bug."""

    name: str
    caught: bool
    seconds: float
    why: str  # empty when caught


def outcomes(bugs: Sequence[Bug] = BUGS, jobs: int = 2) -> Iterator[Outcome]:
    """What became of every bug, as they end.

    Raises RuntimeError when the tests fail without any bug, and ValueError when a bug does not fit
    the source.
    """
    for bug in bugs:
        bug.changed()  # a text that is not there any more is an error, and no catch
    _import_the_slow()
    every = sorted({test for bug in bugs for test in bug.by})
    halves = [(None, every[part::jobs]) for part in range(min(jobs, len(every)))]
    for _, ended in _in_children(halves, jobs):
        if ended.code != PASSED:
            raise RuntimeError(f"the tests fail on the real source:\n{ended.said[-3000:]}")
    for index, ended in _in_children([(bug, bug.by) for bug in bugs], jobs):
        yield Outcome(bugs[index].name, ended.code == FAILED, round(ended.seconds, 2), _why(ended))


@dataclass(frozen=True, slots=True)
class _Ended:
    code: int | None  # None: killed at its limit
    seconds: float
    said: str


def _why(ended: _Ended) -> str:
    reasons: dict[int | None, str] = {
        FAILED: "",
        PASSED: "its tests pass",
        None: "its tests do not end",
    }
    return reasons.get(ended.code, f"pytest ended with {ended.code}: {ended.said[-500:]}")


def _in_children(
    work: Sequence[tuple[Bug | None, Sequence[str]]], jobs: int
) -> Iterator[tuple[int, _Ended]]:
    """Runs each piece in a child, `jobs` at a time; yields its index and how it ended.

    Only one thread exists here: a child forked beside a second thread may inherit a lock that
    nobody will release.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield from _in_folder(work, jobs, Path(folder))


def _in_folder(
    work: Sequence[tuple[Bug | None, Sequence[str]]], jobs: int, folder: Path
) -> Iterator[tuple[int, _Ended]]:
    """The children keep what they write apart: pytest's common folder is tidied by all who use it,
    at the same time."""
    context = multiprocessing.get_context("fork")
    waiting = list(enumerate(work))[::-1]
    running: dict[int, tuple[BaseProcess, float, IO[str]]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            index, (bug, tests) = waiting.pop()
            output = (folder / f"{index}.txt").open("w+", encoding="utf-8")
            words = bug, tests, output.name, str(folder / str(index))
            started = context.Process(target=_child, args=words)
            started.start()
            running[index] = (started, time.monotonic(), output)
        multiprocessing.connection.wait(
            [child.sentinel for child, _, _ in running.values()], timeout=1.0
        )
        for index, (child, began, said) in list(running.items()):
            seconds = time.monotonic() - began
            late = seconds > LIMIT_S
            if child.is_alive() and not late:
                continue
            if late:
                child.kill()
            child.join()
            del running[index]
            with said:
                yield index, _Ended(None if late else child.exitcode, seconds, said.read())


def _import_the_slow() -> None:
    """What every child needs and no bug changes: together most of a child's processor time."""
    slow = (
        "grpc.aio",
        "google.protobuf.descriptor_pb2",
        "numpy.testing",
        "structlog",
        "safetensors.torch",
        "transformers.modeling_utils",
        # torch loads it, and sympy, when some functions are called first
        "torch.distributed.tensor",
        "anyio.pytest_plugin",
        "hypothesis",
        "pytest_asyncio",
        "pytest_timeout",
        "xdist.plugin",
    )
    for name in slow:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    touched = sorted({bug.module for bug in BUGS} & set(sys.modules))
    if touched:
        raise RuntimeError(f"{touched[0]} is imported already, so a bug in it could not be put in")
    gc.freeze()  # else every child's collections walk through all of that, and copy its pages


class _Collecting:
    """Ends a child whose tests cannot be collected: of several files `-x` would say they failed."""

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            print(report.longreprtext)
            sys.stdout.flush()
            os._exit(UNREADABLE)


def _child(bug: Bug | None, tests: Sequence[str], output: str, temporary: str) -> None:
    import pytest
    from hypothesis import HealthCheck, settings

    settings.register_profile("crowded", deadline=None, suppress_health_check=list(HealthCheck))
    settings.load_profile("crowded")  # a machine that is slow is no catch
    if bug is not None:
        sys.meta_path.insert(0, BugOnImport(bug))
    os.chdir(ROOT)
    with open(output, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        calm = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")
        warnings = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # plugins are there already
        words = [*calm, *warnings, f"--basetemp={temporary}", *map(node, tests)]
        code = int(pytest.main(words, plugins=[_Collecting()]))
        sys.stdout.flush()
    os._exit(ENDED + code)
