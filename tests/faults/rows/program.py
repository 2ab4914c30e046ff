"""What the programs of rows share: their arguments, silence of the system under test, figures.

Each has `rows`, which takes what was asked for and yields what it found, and may have OPTIONS of
its own.
"""

import argparse
import importlib
import logging
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import structlog

from benchmarks.pair import leave_in_order
from benchmarks.row import Row, note

Args: TypeAlias = argparse.Namespace
Rows: TypeAlias = Iterator[Row]


def arguments(description: str | None, numbers: Mapping[str, float | None]) -> Args:
    """`--json`, `--long`, and numbers by name with their usual values."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print JSON rows")
    parser.add_argument("--long", action="store_true", help="as often as the table says")
    for name, usual in numbers.items():
        parser.add_argument(f"--{name}", type=float, default=usual)
    return parser.parse_args(sys.argv[2:])


def main() -> int:
    """The program that was named; SIGTERM ends it in order, and only errors are logged."""
    if len(sys.argv) < 2:
        raise SystemExit(
            "python -m tests.faults.rows ROW [--json]: a module of this folder, as r04_malformed"
        )
    program = importlib.import_module(f"tests.faults.rows.{sys.argv[1]}")
    args = arguments(program.__doc__, getattr(program, "OPTIONS", {}))
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    leave_in_order()
    return max(row.show(as_json=args.json) for row in program.rows(args))


def statement(row: str, name: str, value: object, bars: Mapping[str, object]) -> Row:
    """The row of a statement that holds where every bar does. bars: by what each one says."""
    for bar in (missed := [bar for bar, holds in bars.items() if not holds]):
        note(f"row {row} misses: {bar}")
    return Row(row, name, value, "; ".join(bars), not missed)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed. Of nothing NaN, which is
    within no bar."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else math.nan
