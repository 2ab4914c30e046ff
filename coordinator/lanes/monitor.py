"""The losslessness monitor: tests while serving whether drafted tokens follow the q sent with them.

The ratio rules keep the target's distribution only if drafted tokens follow their q. One block
cannot show that, many can: the sums that verdicts carry are tested per drafter version, see
`sequential_test`. The chance that a version ever raises a false alarm is at most `FALSE_ALARM`,
however long it serves and however often it is tested: half of it for everything since the start,
the other half for windows that begin anew, so that a deviation that begins late is found as soon as
one that was there from the start.

An alarm holds for the version until the coordinator restarts. From then on no draft of that version
is ordered under the ratio rules: their sequences continue with another version or with empty
blocks, which keeps the distribution of every running request. The coupled rule and temperature 0
are exact for any draft and keep their drafts. Requests that name no rule get the coupled one while
every drafter is distrusted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import structlog

from coordinator.lanes.sequential_test import log_wealth
from dspark.runtime.telemetry import Metrics
from dspark.types import Draws, Rule, SamplingParams

log = structlog.get_logger("dspark.monitor")

FALSE_ALARM = 1e-6
WINDOW = 1 << 20  # draws
LOOK_EVERY = 256  # draws between two tests: any number is valid, arithmetic costs time
VERSIONS = 64  # drafter versions that are tracked; draws of others are dropped and counted


@dataclass(slots=True)
class _Version:
    life: Draws
    window: Draws
    windows: int = 1
    looked_at: int = 0  # draws of `life` at the last test
    why: str = ""  # the statistic that raised the alarm
    name: str = ""  # in metrics


class Monitor:
    """The monitor of one coordinator; a drafter version is its fingerprint."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._limit = math.log(2.0 / FALSE_ALARM)
        self._versions: dict[str, _Version] = {}

    def trusts(self, version: str, params: SamplingParams) -> bool:
        """Whether drafts of a version may be verified under these parameters."""
        return not self._alarm(version) or params.greedy or params.rule is Rule.COUPLED

    def why_not(self, version: str) -> str:
        """For people: why a version is distrusted; empty if it is trusted."""
        if not (why := self._alarm(version)):
            return ""
        return f"distrusted by the monitor ({why}): drafts under coupled and at temperature 0 only"

    def distrusts_all(self, versions: Sequence[str]) -> bool:
        """Whether there are versions and every one has had an alarm."""
        return bool(versions) and all(map(self._alarm, versions))

    def _alarm(self, version: str) -> str:
        """The statistic that raised the version's alarm; empty without one."""
        known = self._versions.get(version)
        return known.why if known is not None else ""

    def observe(self, draws: Iterable[Draws]) -> None:
        """Adds the sums that verdicts carry, and tests each version every `LOOK_EVERY` draws."""
        for each in draws:
            known = self._versions.get(each.drafter_version)
            if known is None:
                if len(self._versions) >= VERSIONS:
                    self._metrics.dropped.labels(kind="draws", reason="too_many_versions").inc()
                    continue
                nothing = Draws(each.drafter_version)
                known = _Version(nothing, nothing, name=each.drafter_version[:16])
                self._versions[each.drafter_version] = known
            self._metrics.monitor_draws.labels(drafter=known.name).inc(each.slots)
            known.life, known.window = known.life + each, known.window + each
            if known.life.slots - known.looked_at >= LOOK_EVERY:
                self._look(known)

    def _look(self, of: _Version) -> None:
        of.looked_at = of.life.slots
        # Windows share their half of the false alarms as 6 / (pi m)^2, which sums to 1.
        spread = math.log(math.pi**2 / 6.0) + 2.0 * math.log(of.windows)
        life, window = log_wealth(of.life), log_wealth(of.window)
        reached, why = max((life[0], life[1]), (window[0] - spread, window[1]))
        self._metrics.monitor_evidence.labels(drafter=of.name).set(reached / self._limit)
        if reached >= self._limit and not of.why:
            of.why = why
            self._metrics.monitor_alarms.labels(drafter=of.name, statistic=why).inc()
            log.error(
                "monitor.alarm",
                drafter=of.life.drafter_version,
                statistic=why,
                nats=round(reached, 1),
                draws=of.life.slots,
                drift=round(of.life.drift / of.life.slots, 5),
                effect="no drafts of this version are asked for under the token and block rules",
            )
        if of.window.slots >= WINDOW:
            of.window, of.windows = Draws(of.life.drafter_version), of.windows + 1
