"""Compares desired with actual processes: which to start and which to stop. Pure: facts and a clock
reading in, actions out.

A replica that was lost after serving is started again at once. One that keeps failing waits longer
each time, so that a broken checkpoint or a full machine is not tried without end; its failures are
forgotten when it has served for a while.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 30.0
FORGIVEN_AFTER_S = 60.0


class Phase(enum.StrEnum):
    """State of a replica in its life."""

    STARTING = "starting"
    SERVING = "serving"
    DOWN = "down"
    STOPPING = "stopping"


@dataclass(frozen=True)
class Observed:
    """What is known of one replica.

    since: when it entered the phase. failures: starts or lives in a row that ended badly. reason:
    why the last one ended. fatal: it reported itself that it can never start as configured. waits:
    what its start waits for. unplaced: no node can hold it, and it has waited long enough.
    """

    phase: Phase
    since: float
    failures: int = 0
    reason: str = ""
    fatal: bool = False
    waits: str = ""
    unplaced: bool = False


def plan(
    desired: Set[str], observed: Mapping[str, Observed], now: float
) -> tuple[list[str], list[str]]:
    """Returns (names to start now, names to stop because they are not desired), each sorted. A
    replica that is starting or stopping is not started again."""
    starts = [
        name
        for name in sorted(desired)
        if (seen := observed.get(name)) is None
        or (seen.phase is Phase.DOWN and now >= seen.since + delay_s(seen))
    ]
    stops = [
        name
        for name, seen in sorted(observed.items())
        if name not in desired and seen.phase is not Phase.STOPPING
    ]
    return starts, stops


def delay_s(seen: Observed) -> float:
    """Seconds to wait before the next start: 0 after a first failure that is not fatal, then
    doubling up to a bound."""
    if seen.failures <= 1 and not seen.fatal:
        return 0.0
    return float(min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** min(max(seen.failures - 2, 0), 16)))


def starting(seen: Observed | None, now: float) -> Observed:
    """The replica's state after a start was begun."""
    before = seen or Observed(Phase.DOWN, now)
    return replace(before, phase=Phase.STARTING, since=now, fatal=False)


def serving(seen: Observed, now: float) -> Observed:
    """The replica's state after it reported that it serves."""
    return replace(seen, phase=Phase.SERVING, since=now, reason="", waits="", unplaced=False)


def stopping(seen: Observed) -> Observed:
    """The replica's state once it is not wanted: it waits for nothing any more."""
    return replace(seen, phase=Phase.STOPPING, reason="", waits="", unplaced=False)


def down(seen: Observed, now: float, reason: str, *, fatal: bool = False) -> Observed:
    """The replica's state after it failed to start, or was lost."""
    lived = now - seen.since if seen.phase is Phase.SERVING else 0.0
    failures = 1 if lived >= FORGIVEN_AFTER_S else seen.failures + 1
    return Observed(Phase.DOWN, now, failures, reason, fatal)
