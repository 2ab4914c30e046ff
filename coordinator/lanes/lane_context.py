"""What all lanes of a coordinator share, and the rounds that they hand to watches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from coordinator.clock import Clock
from coordinator.config import CoordinatorConfig
from coordinator.lanes.facts import DrafterPort
from coordinator.lanes.monitor import Monitor
from coordinator.lanes.request_state import RequestState
from dspark.rounds.control import PassReport
from dspark.rounds.events import RoundReport
from dspark.rounds.plan import Plan
from dspark.runtime.telemetry import Metrics


@dataclass(frozen=True, slots=True)
class Reported:
    """One cohort's committed round: references, no arithmetic. Times are clock times."""

    lane: str
    ended: float
    report: PassReport
    rounds: Sequence[RoundReport]  # [n] those applied: each the next of its sequence
    states: Sequence[RequestState]  # [n]
    why_empty: Sequence[str]  # [n] why its block was empty, as metrics name it
    plan: Plan  # in force; the one its orders were frozen by is the same or a little older
    name_of: Callable[[int], str]  # drafter's number -> replica


class RoundWatch(Protocol):
    """Receives the committed rounds of every lane of a coordinator."""

    @property
    def watches(self) -> Sequence[object]:
        """Those that are open; without one, this check is all that a round costs."""

    def reported(self, round: Reported) -> None:
        """Takes a round. Call it in the turn of the event loop in which the round was committed."""


@dataclass(frozen=True, slots=True)
class LaneContext:
    """What all lanes of a coordinator share. load: sequences per drafter; write: makes commits and
    epochs durable before a client sees them, None without a journal."""

    clock: Clock
    metrics: Metrics
    monitor: Monitor
    config: CoordinatorConfig = field(default_factory=CoordinatorConfig)
    watch: RoundWatch | None = None
    load: Counter[DrafterPort] = field(default_factory=Counter)
    write: Callable[[], None] | None = None
