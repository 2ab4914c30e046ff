"""One measured statement: a value, the bar it is held against, and whether it holds."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Row:
    """What a check prints with --json, on one line."""

    row: int
    name: str
    value: object
    bar: str
    holds: bool

    def show(self, *, as_json: bool) -> int:
        """Prints the row; returns the exit code of the program."""
        if as_json:
            print(json.dumps(asdict(self)))
        else:
            print(f"{'holds' if self.holds else 'FAILS'}: {self.name}: {self.value} (bar: {self.bar})")
        return 0 if self.holds else 1


def note(line: str) -> None:
    """Progress, on stderr, so that stdout stays one row."""
    print(line, file=sys.stderr, flush=True)
