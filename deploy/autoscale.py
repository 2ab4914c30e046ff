"""How large each pool should be, within section `autoscale` of the file. Pure: readings and a clock
in, sizes out.

Each pool follows its own signal. Drafters: the share of the time they compute, and how long cohorts
wait for them. Verifiers: pages in use, the wait for admission, and the promised latencies.

What keeps it calm: a pool grows when it was too small for `up_after_s` without a break; it shrinks
when it was too large for `down_after_s`, to the largest size that sufficed in that time, and only
if what is left would stand below `headroom` of the target (so that shrinking never asks for
growing); after every change it rests for `cool_down_s`; while replicas are still starting or
leaving nothing is decided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dspark.errors import ConfigError
from dspark.runtime.setting import check_settings, setting


@dataclass(frozen=True, slots=True)
class PoolReading:
    """What the last seconds were like.

    streams: answers in work that may use drafts, and those that wait. drafter_busy: computing share
    of the drafters that serve, on average, in [0, 1]; None when there is none. draft_wait_s: mean
    wait of a cohort for a busy drafter. pages: share of all verifiers' pages in use. queued:
    requests that wait now. queue_s, ttft_s, itl_s: 95th percentiles; None when nothing ended in
    that time.
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
class Need:
    """at_least: replicas needed now. enough: how many would do with headroom. why: in a few words,
    for the log."""

    at_least: int
    enough: int
    why: str


@dataclass(frozen=True, slots=True)
class Memory:
    """What one pool remembers between looks. Times are those of the caller's clock."""

    short_since: float | None = None
    spare_since: float | None = None
    spare_down_to: int = 0  # largest size that sufficed since then
    idle_since: float | None = None  # since nobody was needed at all
    rests_until: float = float("-inf")


def drafters_needed(reading: PoolReading, size: int, config: AutoscaleConfig) -> Need:
    """By the work the drafters do: `size * drafter_busy` of them are busy all the time."""
    if not reading.streams:
        return Need(0, 0, "no streams")
    if size == 0 or reading.drafter_busy is None:
        return Need(1, max(size, 1), "streams without a drafter")
    work = size * reading.drafter_busy
    at_least = max(1, _replicas(work, config.drafter_busy))
    why = f"drafters are {reading.drafter_busy:.0%} busy"
    if at_least <= size and reading.draft_wait_s * 1e3 > config.draft_wait_ms:
        at_least, why = size + 1, f"cohorts wait {reading.draft_wait_s * 1e3:.1f} ms for a drafter"
    calm = reading.draft_wait_s * 1e3 <= config.headroom * config.draft_wait_ms
    enough = max(1, _replicas(work, config.headroom * config.drafter_busy)) if calm else size
    return Need(at_least, max(enough, at_least), why)


def verifiers_needed(reading: PoolReading, size: int, config: AutoscaleConfig) -> Need:
    """By the first of: pages, the line before the door, the promised latencies."""
    at_least, why = (
        max(1, _replicas(size * reading.pages, config.verifier_pages)),
        f"{reading.pages:.0%} of the pages",
    )
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
            at_least, why = (
                max(at_least, size + 1),
                f"{what} {seconds * 1e3:.0f} ms, at most {limit * 1e3:.0f}",
            )
        # Fewer verifiers share the same work, so what is left answers about so much later.
        enough = max(enough, min(size, math.ceil(size * seconds / (config.headroom * limit))))
    if reading.queued:
        enough = max(enough, size)
    return Need(at_least, max(enough, at_least), why)


def step(
    memory: Memory,
    size: int,
    need: Need,
    bounds: tuple[int, int],
    patience: AutoscaleConfig,
    now: float,
) -> tuple[Memory, int]:
    """One look at a settled pool of `size`. bounds: fewest and most. Returns what to remember and
    the size to have."""
    least, most = bounds
    need = Need(min(max(need.at_least, least), most), min(max(need.enough, least), most), need.why)
    idle_since = (
        None if need.enough else memory.idle_since if memory.idle_since is not None else now
    )
    memory, rested = replace(memory, idle_since=idle_since), now >= memory.rests_until
    changed = Memory(idle_since=idle_since, rests_until=now + patience.cool_down_s)
    if need.at_least > size:
        since = memory.short_since if memory.short_since is not None else now
        awakened = size == 0  # somebody waits for the first one
        if awakened or size < least or (rested and now - since >= patience.up_after_s):
            return changed, need.at_least
        return replace(memory, short_since=since, spare_since=None), size
    if idle_since is not None and size and rested and now - idle_since >= patience.zero_after_s:
        return changed, 0
    spare_to = max(need.enough, 1)  # the last one goes later than the others
    if spare_to < size or size > most:
        since, down_to = now, spare_to
        if memory.spare_since is not None:
            since, down_to = memory.spare_since, max(memory.spare_down_to, spare_to)
        if size > most or (rested and now - since >= patience.down_after_s):
            return changed, min(down_to, most)
        return replace(memory, short_since=None, spare_since=since, spare_down_to=down_to), size
    return replace(memory, short_since=None, spare_since=None), size


class Autoscaler:
    """Both pools, look by look."""

    def __init__(self, config: AutoscaleConfig) -> None:
        self.config = config
        self.why: dict[str, str] = {}  # what the last look saw, by pool
        self._memory = dict.fromkeys(config.bounds, Memory())

    def look(
        self, reading: PoolReading, verifiers: int, drafters: int, now: float
    ) -> tuple[int, int]:
        """(verifiers, drafters) to have, for pools that are settled at the given sizes."""
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

    def rest(self, now: float) -> None:
        """Somebody else changed the pools: what was seen before says nothing about them."""
        self._memory = dict.fromkeys(
            self.config.bounds, Memory(rests_until=now + self.config.cool_down_s)
        )


def _replicas(work: float, target: float) -> int:
    """Fewest replicas that share so much work at no more than `target` each; float noise does not
    make one more."""
    return math.ceil(work / target - 1e-9)


@dataclass(frozen=True)
class AutoscaleConfig:
    """Bounds, targets and patience of the two pools. Times are seconds unless the name says
    otherwise."""

    enabled: bool = setting(False, "Let the pools follow the load.")
    min_verifiers: int = setting(1, "Fewest verifiers.", least=1)
    max_verifiers: int = setting(4, "Most verifiers.")
    min_drafters: int = setting(0, "Fewest drafters; 0 lets an idle cell have none.", least=0)
    max_drafters: int = setting(8, "Most drafters.")
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
