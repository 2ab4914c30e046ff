"""Turns the coordinator's status reports into rates, shares and percentiles, for the autoscaler and
for people. Pure.

Counters are cumulative, so every number here is a difference of two reports. A process that was
replaced in between starts from zero and is left out until it was seen twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from deploy.autoscale import PoolReading
from dspark.client import CellStatus, ProcessStatus

TTFT = "dspark_time_to_first_token_seconds"
PER_TOKEN = "dspark_request_time_per_output_token_seconds"
QUEUE = "dspark_request_queue_time_seconds"
DRAFT_RPC = "dspark_draft_rpc_seconds"
VERIFY_RPC = "dspark_verify_rpc_seconds"


@dataclass
class LoadWindow:
    """Status reports of the last `seconds`, and the changes between the oldest and the newest."""

    seconds: float
    _looks: deque[tuple[float, CellStatus]] = field(default_factory=deque)

    def add(self, at: float, status: CellStatus) -> None:
        """Adds a report and its time by any monotonic clock; drops what is older than the window,
        but always keeps two."""
        self._looks.append((at, status))
        while len(self._looks) > 2 and self._looks[1][0] <= at - self.seconds:
            self._looks.popleft()

    @property
    def newest(self) -> CellStatus:
        return self._looks[-1][1]

    @property
    def oldest(self) -> CellStatus:
        return self._looks[0][1]

    @property
    def span_s(self) -> float:
        """Time between the oldest and the newest report; 0 with fewer than two."""
        return self._looks[-1][0] - self._looks[0][0] if self._looks else 0.0

    def total(self, name: str) -> float:
        """Growth of a counter of the coordinator; its whole value when the coordinator is new."""
        now = self.newest.totals.get(name, 0.0)
        grown = now - self.oldest.totals.get(name, 0.0)
        return grown if grown >= 0 else now

    def rate(self, name: str) -> float:
        """Growth of a counter of the coordinator per second."""
        return self.total(name) / self.span_s if self.span_s > 0 else 0.0

    def percentile(self, name: str, share: float) -> float | None:
        """Percentile of a latency, seconds; None when nothing was observed in the window."""
        newest, oldest = (
            {each.name: each for each in look.distributions}.get(name)
            for look in (self.newest, self.oldest)
        )
        if newest is None:
            return None
        counts = list(newest.counts)
        if oldest is not None and oldest.bounds == newest.bounds:
            grown = [now - before for now, before in zip(newest.counts, oldest.counts, strict=True)]
            counts = grown if min(grown, default=0) >= 0 else counts
        return percentile(newest.bounds, counts, share)

    def busy(self, role: str) -> dict[str, float]:
        """Share of the time each worker's device worked, by name."""
        return {
            now.name: min(max((now.busy_s - before.busy_s) / self.span_s, 0.0), 1.0)
            for now, before in self._pairs(role)
            if self.span_s > 0
        }

    def draft_wait_s(self) -> float:
        """Mean wait of a cohort for a busy drafter; 0 when none waited."""
        pairs = self._pairs("draft")
        waits = sum(now.waits - before.waits for now, before in pairs)
        return (
            sum(now.wait_s - before.wait_s for now, before in pairs) / waits if waits > 0 else 0.0
        )

    def reading(self) -> PoolReading:
        """The load of the window, from which the autoscaler decides."""
        status = self.newest
        verifiers = [
            each for each in status.processes if each.role == "verify" and each.state == "serving"
        ]
        total = sum(each.pages_total for each in verifiers)
        busy = self.busy("draft")
        return PoolReading(
            streams=sum(lane.running + lane.waiting for lane in status.lanes) + status.queued,
            drafter_busy=sum(busy.values()) / len(busy) if busy else None,
            draft_wait_s=self.draft_wait_s(),
            pages=sum(each.pages_held for each in verifiers) / total if total else 0.0,
            queued=status.queued,
            queue_s=self.percentile(QUEUE, 0.95),
            ttft_s=self.percentile(TTFT, 0.95),
            itl_s=self.percentile(PER_TOKEN, 0.95),
        )

    def _pairs(self, role: str) -> list[tuple[ProcessStatus, ProcessStatus]]:
        """(now, before) of each serving worker that the oldest report has as the same process."""
        # A worker too busy to report sends 0 for everything, its pid too: that is no reading.
        before = {(each.name, each.incarnation): each for each in self.oldest.processes if each.pid}
        return [
            (now, before[now.name, now.incarnation])
            for now in self.newest.processes
            if now.role == role
            and now.state == "serving"
            and now.pid
            and (now.name, now.incarnation) in before
        ]


def percentile(bounds: Sequence[float], counts: Sequence[float], share: float) -> float | None:
    """Percentile of a histogram: linear inside the bucket, as Prometheus does; beyond the last
    bound, that bound. None without observations."""
    total = sum(counts)
    if total <= 0:
        return None
    wanted, seen, lower = share * total, 0.0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count > 0 and seen + count >= wanted:
            return lower + (bound - lower) * (wanted - seen) / count
        seen, lower = seen + count, bound
    return bounds[-1] if bounds else None
