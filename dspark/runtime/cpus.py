"""Which processors a process runs on, by its `cpus` setting."""

from __future__ import annotations

import os
from pathlib import Path

from dspark.errors import ConfigError

MOST = 4096  # no machine has a processor of a higher number
TASKS = Path("/proc/self/task")


def usable() -> tuple[int, ...]:
    """Numbers of the processors this process may run on, ascending; empty where the platform does not tell."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def parse_cpus(text: str) -> frozenset[int]:
    """What `0-3,8` names. Raises ValueError."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else not last)):
            raise ValueError(f"{text!r} is not a list of processors like 0-3,8")
        least, most = int(first), int(last or first)
        if not least <= most < MOST:
            raise ValueError(f"{part.strip()!r} is not a range of processors below {MOST}")
        found.update(range(least, most + 1))
    return frozenset(found)


def keep_to(text: str, key: str) -> None:
    """Keeps this process, with the threads it has and will have, to processors; an empty text changes nothing.

    Raises ConfigError that names `key` for a text that is no list, for processors that this process may not use, and
    where the platform knows no such thing.
    """
    if not text:
        return
    may = usable()
    try:
        wanted = parse_cpus(text)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from None
    if not may:
        raise ConfigError(f"{key}: this platform cannot keep a process to processors")
    if missing := sorted(wanted.difference(may)):
        raise ConfigError(f"{key}: {missing[0]} is none of the processors this process may use ({_listed(may)})")
    for task in TASKS.iterdir():
        try:
            os.sched_setaffinity(int(task.name), wanted)
        except ProcessLookupError:  # a thread that has just ended
            continue


def _listed(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
