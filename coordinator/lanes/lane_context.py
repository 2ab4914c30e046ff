"""What all lanes of a coordinator share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from coordinator.clock import Clock
from coordinator.config import CoordinatorConfig
from coordinator.lanes.facts import DrafterPort
from coordinator.lanes.monitor import Monitor
from coordinator.lanes.watch import Explain
from dspark.runtime.telemetry import Metrics


@dataclass(frozen=True)
class LaneContext:
    """What all lanes of a coordinator share. load: sequences per drafter; write: makes commits and
    epochs durable before a client sees them, where there is a journal."""

    clock: Clock
    metrics: Metrics
    config: CoordinatorConfig
    write: Callable[[], None] = lambda: None
    load: Counter[DrafterPort] = field(default_factory=Counter)

    @cached_property
    def monitor(self) -> Monitor:
        return Monitor(self.metrics)

    @cached_property
    def explain(self) -> Explain:
        return Explain(self.metrics.dropped.labels(kind="explained", reason="not_read").inc)
