"""Decides how large each pool should be, within section `autoscale` of the file. Pure: readings and
clock times in, sizes out.

Each pool follows its own signal. Drafters: the share of the time they compute, and how long cohorts
wait for them. Verifiers: pages in use, the wait for admission, and the promised latencies.

To avoid oscillation a pool grows when it was too small for `up_after_s` without a break. It shrinks
when it was too large for `down_after_s`, to the largest size that was needed in that time, and only
if the rest would stand below `headroom` of the target, so that shrinking never causes growing.
After every change it rests for `cool_down_s`. While replicas start or leave nothing is decided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dspark.errors import ConfigError
from dspark.runtime.setting import check_settings, setting


@dataclass(frozen=True, slots=True)
class PoolReading:
    """Load of a cell over the last seconds.

    streams: sequences that run or wait, in lanes and in the queue. drafter_busy: mean share of the
    time that serving drafters compute, in [0, 1]; None when there is none. draft_wait_s: mean wait
    of a cohort for a busy drafter. pages: share of all verifiers' pages in use. queued: requests
    that wait now. queue_s, ttft_s, itl_s: 95th percentiles; None when nothing ended in that time.
    """

    streams: int
    drafter_busy: float | None = None
    draft_wait_s: float = 0.0
    pages: float = 0.0
    queued: int = 0
    queue_s: float | None = None
    ttft_s: float | None = None
    itl_s: float | None = None


@dataclass(frozen=True, slots=True)
class PoolNeed:
    """Replicas that a pool needs. at_least: how many now. enough: how many suffice with headroom.
    why: the reason in a few words, for the log."""

    at_least: int
    enough: int
    why: str


@dataclass(frozen=True, slots=True)
class PoolHistory:
    """State of one pool between looks. Times are those of the caller's clock."""

    short_since: float | None = None
    spare_since: float | None = None
    spare_down_to: int = 0  # largest size that sufficed since then
    idle_since: float | None = None  # since no replica was needed at all
    rests_until: float = float("-inf")


def drafters_needed(reading: PoolReading, size: int, config: AutoscaleConfig) -> PoolNeed:
    """Drafters needed for the work that is done, `size * drafter_busy` drafters' full time, and for
    cohorts not to wait too long."""
    if not reading.streams:
        return PoolNeed(0, 0, "no streams")
    if size == 0 or reading.drafter_busy is None:
        return PoolNeed(1, max(size, 1), "streams without a drafter")
    work = size * reading.drafter_busy
    at_least = max(1, _replicas(work, config.drafter_busy))
    why = f"drafters are {reading.drafter_busy:.0%} busy"
    if at_least <= size and reading.draft_wait_s * 1e3 > config.draft_wait_ms:
        at_least, why = size + 1, f"cohorts wait {reading.draft_wait_s * 1e3:.1f} ms for a drafter"
    calm = reading.draft_wait_s * 1e3 <= config.headroom * config.draft_wait_ms
    enough = max(1, _replicas(work, config.headroom * config.drafter_busy)) if calm else size
    return PoolNeed(at_least, max(enough, at_least), why)


def verifiers_needed(reading: PoolReading, size: int, config: AutoscaleConfig) -> PoolNeed:
    """Verifiers needed for pages in use, wait for admission and promised latencies; the largest of
    these needs counts."""
    at_least = max(1, _replicas(size * reading.pages, config.verifier_pages))
    why = f"{reading.pages:.0%} of the pages"
    enough = max(1, _replicas(size * reading.pages, config.headroom * config.verifier_pages))
    limits = (
        ("wait for admission", reading.queue_s, config.queue_s),
        ("time to first token", reading.ttft_s, config.slo_ttft_ms / 1e3),
        ("time per token", reading.itl_s, config.slo_itl_ms / 1e3),
    )
    for what, seconds, limit in limits:
        if seconds is None or not limit:
            continue
        if seconds > limit and (reading.streams or reading.queued):
            at_least = max(at_least, size + 1)
            why = f"{what} {seconds * 1e3:.0f} ms, at most {limit * 1e3:.0f}"
        # Fewer verifiers share the same work, so latency grows by about that ratio.
        enough = max(enough, min(size, math.ceil(size * seconds / (config.headroom * limit))))
    if reading.queued:
        enough = max(enough, size)
    return PoolNeed(at_least, max(enough, at_least), why)


def step(
    memory: PoolHistory,
    size: int,
    need: PoolNeed,
    bounds: tuple[int, int],
    patience: AutoscaleConfig,
    now: float,
) -> tuple[PoolHistory, int]:
    """Decides the size of a settled pool that has `size` replicas. bounds: fewest and most. Returns
    the pool's new state and its wanted size."""
    least, most = bounds
    need = PoolNeed(
        min(max(need.at_least, least), most), min(max(need.enough, least), most), need.why
    )
    idle_since = (
        None if need.enough else memory.idle_since if memory.idle_since is not None else now
    )
    memory, rested = replace(memory, idle_since=idle_since), now >= memory.rests_until
    changed = PoolHistory(idle_since=idle_since, rests_until=now + patience.cool_down_s)
    if need.at_least > size:
        since = memory.short_since if memory.short_since is not None else now
        awakened = size == 0  # requests wait for the first replica
        if awakened or size < least or (rested and now - since >= patience.up_after_s):
            return changed, need.at_least
        return replace(memory, short_since=since, spare_since=None), size
    if idle_since is not None and size and rested and now - idle_since >= patience.zero_after_s:
        return changed, 0
    spare_to = max(need.enough, 1)  # the last replica leaves later than the others
    if spare_to < size or size > most:
        since, down_to = now, spare_to
        if memory.spare_since is not None:
            since, down_to = memory.spare_since, max(memory.spare_down_to, spare_to)
        if size > most or (rested and now - since >= patience.down_after_s):
            return changed, min(down_to, most)
        return replace(memory, short_since=None, spare_since=since, spare_down_to=down_to), size
    return replace(memory, short_since=None, spare_since=None), size


class Autoscaler:
    """Decides the sizes of both pools, one look at a time."""

    def __init__(self, config: AutoscaleConfig) -> None:
        self.config = config
        self.why: dict[str, str] = {}  # reason of the last decision, by pool
        self._memory = dict.fromkeys(config.bounds, PoolHistory())

    def look(
        self, reading: PoolReading, verifiers: int, drafters: int, now: float
    ) -> tuple[int, int]:
        """The wanted (verifiers, drafters), for pools that are settled at the given sizes."""
        config, wanted = self.config, dict[str, int]()
        looks = (
            ("verifiers", verifiers_needed, verifiers),
            ("drafters", drafters_needed, drafters),
        )
        for pool, needed, size in looks:
            need = needed(reading, size, config)
            self.why[pool] = need.why
            self._memory[pool], wanted[pool] = step(
                self._memory[pool], size, need, config.bounds[pool], config, now
            )
        return wanted["verifiers"], wanted["drafters"]

    def forget(self) -> None:
        """Forgets how long pools have been too small, too large or idle: while replicas start or
        leave nobody looks, so what comes after is not without a break. Rests go on."""
        self._memory = {
            pool: PoolHistory(rests_until=memory.rests_until)
            for pool, memory in self._memory.items()
        }

    def rest(self, now: float) -> None:
        """Lets both pools rest after an operator or the controller resized them: earlier readings
        say nothing about the new sizes."""
        self._memory = dict.fromkeys(
            self.config.bounds, PoolHistory(rests_until=now + self.config.cool_down_s)
        )


def _replicas(work: float, target: float) -> int:
    """Fewest replicas that share `work` at `target` each or less; float noise never adds one."""
    return math.ceil(work / target - 1e-9)


@dataclass(frozen=True)
class AutoscaleConfig:
    """Bounds, targets and patience of the two pools. Times are seconds unless the name says
    otherwise."""

    enabled: bool = setting(False, "Let the pools follow the load.")
    min_verifiers: int = setting(1, "Fewest verifiers.", least=1)
    max_verifiers: int = setting(4, "Most verifiers.", least=1)
    min_drafters: int = setting(0, "Fewest drafters; 0 lets an idle cell have none.", least=0)
    max_drafters: int = setting(8, "Most drafters.", least=0)
    drafter_busy: float = setting(
        0.7,
        "Share of the time a drafter should compute at most; above, one more is wanted.",
        above=0,
        most=1,
    )
    draft_wait_ms: float = setting(
        10.0, "Mean wait of a cohort for a busy drafter; above, one more is wanted.", above=0
    )
    verifier_pages: float = setting(
        0.8, "Share of the verifiers' pages in use; above, one more is wanted.", above=0, most=1
    )
    queue_s: float = setting(
        1.0,
        "95th percentile of the wait for admission; above, one more verifier is wanted.",
        above=0,
    )
    slo_ttft_ms: float = setting(0.0, "95th percentile of time to first token; 0: none.", least=0)
    slo_itl_ms: float = setting(0.0, "95th percentile of time per token; 0: none.", least=0)
    headroom: float = setting(
        0.8,
        "A pool shrinks only if what is left would stand below this share of its target.",
        above=0,
        most=1,
    )
    look_s: float = setting(2.0, "Between two looks at the cell.", above=0)
    window_s: float = setting(10.0, "What shares and percentiles are taken over.", above=0)
    up_after_s: float = setting(6.0, "How long a pool must be too small before it grows.", least=0)
    down_after_s: float = setting(60.0, "How long it must be too large before it shrinks.", least=0)
    zero_after_s: float = setting(300.0, "Idle time after which the last drafter goes.", least=0)
    cool_down_s: float = setting(20.0, "Rest of a pool after a change of its size.", least=0)

    def __post_init__(self) -> None:
        check_settings(self, "autoscale")
        for pool, (least, most) in self.bounds.items():
            if least > most:
                raise ConfigError(f"autoscale.min_{pool}: {least} to {most} is no range")

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        """(fewest, most) of each pool."""
        return {
            "verifiers": (self.min_verifiers, self.max_verifiers),
            "drafters": (self.min_drafters, self.max_drafters),
        }
