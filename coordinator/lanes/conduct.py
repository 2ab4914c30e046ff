"""How lanes behave, and what those of one coordinator share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.clock import Clock
from coordinator.lanes.facts import DrafterPort
from coordinator.lanes.monitor import Monitor
from coordinator.lanes.reported import RoundWatch
from dspark.runtime.telemetry import Metrics


@dataclass(frozen=True, slots=True)
class Conduct:
    """Of every lane of a coordinator. Waits are seconds."""

    prefills: int = 32  # at one time: with many streams of short answers, a handful a round would be all that enter
    prefill_s: float = 120.0
    verify_s: float = 10.0
    bypass: bool = True  # whether a lane may go without drafts where they do not pay
    cohorts: int = 0  # 1 or 2 that take turns; 0: whichever commits faster
    window: int = 2  # rounds that a verifier may run beyond the last acknowledged one


@dataclass(frozen=True, slots=True)
class LaneContext:
    """Of all lanes of a coordinator. load: sequences by the drafter that drafts for them; write: makes commits and
    epochs last before anybody is shown them, where there is a journal."""

    clock: Clock
    metrics: Metrics
    monitor: Monitor
    conduct: Conduct = field(default_factory=Conduct)
    watch: RoundWatch | None = None
    load: Counter[DrafterPort] = field(default_factory=Counter)
    write: Callable[[], None] | None = None
