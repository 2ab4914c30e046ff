"""What `dspark doctor` checks: this machine, a pair, a cluster with its cell. Every check yields
findings."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """The result of a check. what: its subject. said: what was found. mend: how to mend it, empty
    if it is fine."""

    what: str
    level: Level
    said: str
    mend: str = ""


def fine(what: str, said: str) -> Finding:
    return Finding(what, Level.OK, said)


def doubtful(what: str, said: str, mend: str) -> Finding:
    return Finding(what, Level.WARN, said, mend)


def wrong(what: str, said: str, mend: str) -> Finding:
    return Finding(what, Level.FAIL, said, mend)
