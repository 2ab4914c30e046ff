"""Which rows there are, in which programs, and how long they may take. A new row is a line here and a module there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One program of `tests/faults/rows`."""

    row: str
    module: str
    share_s: float  # kept for it whatever those before it take
    statements: int = 1  # rows that it prints
    alone: bool = False  # whether it measures time, or wants both processors
    longest_s: float = float("inf")


QUICK: tuple[Entry, ...] = ()

LONG: tuple[Entry, ...] = ()
