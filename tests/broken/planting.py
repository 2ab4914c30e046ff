"""Puts a bug into a function that runs: its code is made anew from the changed source.

Works in a process that has imported everything, and takes the line out again. In the processes of a
cell it is put in as they begin: they have this package's `site` folder on their path, and
DSPARK_BROKEN names the build.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from tests.mutation.bugs import ROOT, Bug, read

SITE = Path(__file__).parent / "site"
BUILDS = read(Path(__file__).with_name("builds.txt"))


def plant(bug: Bug) -> tuple[FunctionType, CodeType]:
    """The function, changed, and the code that it had."""
    line = bug.source.partition(bug.right)[0].count("\n") + 1
    code = _function_at(compile(bug.changed(), str(ROOT / bug.file), "exec"), line)
    found: Any = importlib.import_module(bug.module)
    for name in code.co_qualname.split("."):
        found = inspect.getattr_static(found, name)
    found = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    function = inspect.unwrap(found)
    before, function.__code__ = function.__code__, code
    return function, before


@contextlib.contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """The build runs within."""
    function, before = plant(bug)
    try:
        yield
    finally:
        function.__code__ = before


def environment(bug: Bug) -> Mapping[str, str]:
    """Of processes that are to run the build."""
    paths = (str(SITE), str(ROOT), os.environ.get("PYTHONPATH", ""))
    return {"DSPARK_BROKEN": bug.name, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _function_at(code: CodeType, line: int) -> CodeType:
    """The outermost function that the line belongs to."""
    inside = [each for each in code.co_consts if isinstance(each, CodeType)]
    for each in inside:
        lines = {number for _, _, number in _all_lines(each) if number is not None}
        if min(lines) <= line <= max(lines):
            return each if each.co_flags & inspect.CO_OPTIMIZED else _function_at(each, line)
    raise ValueError(f"line {line} of {code.co_filename} is in no function")


def _all_lines(code: CodeType) -> Iterator[tuple[int, int, int | None]]:
    yield from code.co_lines()
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _all_lines(each)
