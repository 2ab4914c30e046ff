"""Puts a wrong line into a function that runs: its code is made anew from the changed source.

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
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

ROOT = Path(__file__).parents[2]
SITE = Path(__file__).parent / "site"


@dataclass(frozen=True, slots=True)
class Build:
    """`right` stands once in the file, inside a function."""

    name: str
    row: str  # of docs/reliability.md
    promise: str  # what has to turn red
    file: str
    right: str
    wrong: str

    @property
    def module(self) -> str:
        return self.file.removesuffix(".py").replace("/", ".")


def changed(build: Build) -> str:
    """The source with the wrong line. Raises ValueError unless the right one is there once."""
    source = (ROOT / build.file).read_text(encoding="utf-8")
    if source.count(build.right) != 1:
        raise ValueError(
            f"{build.name}: {build.file} holds the line {source.count(build.right)} times, not once"
        )
    return source.replace(build.right, build.wrong)


def plant(build: Build) -> tuple[FunctionType, CodeType]:
    """The function, changed, and the code that it had."""
    text = changed(build)
    line = text[: text.index(build.wrong)].count("\n") + 1
    code = _function_at(compile(text, str(ROOT / build.file), "exec"), line)
    found: Any = importlib.import_module(build.module)
    for name in code.co_qualname.split("."):
        found = inspect.getattr_static(found, name)
    found = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    function = inspect.unwrap(found)
    before, function.__code__ = function.__code__, code
    return function, before


@contextlib.contextmanager
def planted(build: Build) -> Iterator[None]:
    """The build runs within."""
    function, before = plant(build)
    try:
        yield
    finally:
        function.__code__ = before


def environment(build: Build) -> Mapping[str, str]:
    """Of processes that are to run the build."""
    paths = (str(SITE), str(ROOT), os.environ.get("PYTHONPATH", ""))
    return {"DSPARK_BROKEN": build.name, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


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
