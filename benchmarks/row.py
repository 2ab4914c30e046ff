"""One measured statement: a value, the bar it is held against, and whether it holds."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from dataclasses import asdict, dataclass

import structlog

from dspark.cli.options import HelpFormatter
from dspark.loadgen.report import machine


@dataclass(frozen=True)
class Row:
    """What a check prints with --json, on one line.

    row: number of the statement ("B2"). holds: None when it could not be measured here; `value`
    says why.
    """

    row: int | str
    name: str
    value: object
    bar: str
    holds: bool | None

    def show(self, *, as_json: bool) -> int:
        """Prints the row; returns the exit code of the program."""
        if as_json:
            print(json.dumps(asdict(self) | machine()), flush=True)
        else:
            verdict = {True: "holds", False: "FAILS", None: "not measured"}[self.holds]
            print(f"{verdict}: {self.name}: {self.value} (bar: {self.bar})", flush=True)
        return 1 if self.holds is False else 0


class _Help(HelpFormatter, argparse.RawDescriptionHelpFormatter):
    pass


class Program(argparse.ArgumentParser):
    """The options of a program of this folder, `--json` among them. doc: its docstring."""

    def __init__(self, name: str, doc: str | None) -> None:
        super().__init__(f"python -m benchmarks.{name}", description=doc, formatter_class=_Help)
        self.add_argument("--json", action="store_true", help="print JSON, one row a line")


def note(line: str) -> None:
    """Prints progress on stderr, so that stdout stays one row."""
    print(line, file=sys.stderr, flush=True)


def quiet() -> None:
    """Limits the log of this process to warnings."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


def only_rows() -> None:
    """Sends the log of engines in this process to stderr as well."""
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))
