"""How lanes behave, what those of one coordinator share, and what they tell of rounds to whoever
watches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from coordinator.clock import Clock
from coordinator.lanes.facts import DrafterPort
from coordinator.lanes.monitor import Monitor
from coordinator.lanes.request_state import RequestState
from dspark.rounds.control import PassReport
from dspark.rounds.events import RoundReport
from dspark.rounds.plan import Plan
from dspark.runtime.telemetry import Metrics


@dataclass(frozen=True, slots=True)
class Conduct:
    """Of every lane of a coordinator. Waits are seconds."""

    # at one time: with many streams of short answers, a handful a round would be all that enter
    max_prefills: int = 32
    prefill_deadline_s: float = 120.0
    verify_deadline_s: float = 10.0
    bypass: bool = True  # whether a lane may go without drafts where they do not pay
    cohorts: int = 0  # 1 or 2 that take turns; 0: whichever commits faster
    window: int = 2  # rounds that a verifier may run beyond the last acknowledged one


@dataclass(frozen=True, slots=True)
class Reported:
    """One cohort's round, when it had been committed: references, no arithmetic. Times are clock
    times."""

    lane: str
    ended: float
    report: PassReport
    rounds: Sequence[RoundReport]  # [n] those that were the next ones of somebody here
    states: Sequence[RequestState]  # [n]
    why_empty: Sequence[str]  # [n] why it had no block, as metrics name it
    plan: Plan  # in force; the one its orders were frozen by is the same or a little older
    name_of: Callable[[int], str]  # drafter's number -> replica


class RoundWatch(Protocol):
    """Hung on every lane of a coordinator."""

    @property
    def watched(self) -> bool:
        """Whether anybody looks: a round pays for this question alone where nobody does."""

    def reported(self, round: Reported) -> None:
        """Call it in the turn of the event loop in which the round was committed."""


@dataclass(frozen=True, slots=True)
class LaneContext:
    """Of all lanes of a coordinator. load: sequences by the drafter that drafts for them; write:
    makes commits and epochs last before anybody is shown them, where there is a journal."""

    clock: Clock
    metrics: Metrics
    monitor: Monitor
    conduct: Conduct = field(default_factory=Conduct)
    watch: RoundWatch | None = None
    load: Counter[DrafterPort] = field(default_factory=Counter)
    write: Callable[[], None] | None = None
