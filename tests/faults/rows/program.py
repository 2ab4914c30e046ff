"""What the programs of rows share: their arguments, silence of the system under test, figures."""

from __future__ import annotations

import argparse
import logging
import math
import resource
from collections.abc import Sequence

import structlog

from benchmarks.pair import leave_in_order


def arguments(description: str | None, **numbers: float | None) -> argparse.Namespace:
    """`--json`, `--long`, and numbers by name with their usual values. From here on SIGTERM ends the program in order,
    and only errors are logged."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print JSON rows")
    parser.add_argument("--long", action="store_true", help="as often as the table says")
    for name, usual in numbers.items():
        parser.add_argument(f"--{name}", type=float, default=usual)
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    leave_in_order()
    return args


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed; 0 of nothing."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else 0.0


def cpu_s(who: int = resource.RUSAGE_CHILDREN) -> float:
    """Seconds of processor time."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime
