"""Pools that follow the load, in simulated time: they reach the size the work asks for and stay
there."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from deploy.autoscale import (
    AutoscaleConfig,
    Autoscaler,
    PoolHistory,
    PoolNeed,
    PoolReading,
    drafters_needed,
    step,
    verifiers_needed,
)
from dspark.errors import ConfigError

CONFIG = AutoscaleConfig(
    enabled=True, min_drafters=0, max_drafters=6, min_verifiers=1, max_verifiers=4
)
CALM = AutoscaleConfig(up_after_s=6, down_after_s=60, zero_after_s=300, cool_down_s=20)

BOOT_S = 8.0
History = list[tuple[float, int, int]]


def _simulate(
    reading: Callable[[float, int, int], PoolReading],
    seconds: float,
    *,
    start: tuple[int, int] = (1, 1),
    config: AutoscaleConfig = CONFIG,
) -> History:
    """(time, verifiers, drafters) at every change; a change takes `BOOT_S`, in which nobody
    looks."""
    scaler, sizes, settled_at = Autoscaler(config), start, 0.0
    history = [(0.0, *start)]
    for tick in range(int(seconds / config.look_s)):
        now = tick * config.look_s
        if now < settled_at:
            continue
        wanted = scaler.look(reading(now, *sizes), *sizes, now)
        if wanted != sizes:
            sizes, settled_at = wanted, now + BOOT_S
            history.append((now, *sizes))
    return history


def _work(streams: int, work: float, **more: float) -> Callable[[float, int, int], PoolReading]:
    """Drafters share `work` replica-seconds per second; beyond 1 each, cohorts wait."""

    def reading(now: float, verifiers: int, drafters: int) -> PoolReading:
        busy = min(1.0, work / drafters) if drafters else None
        waits = 0.0 if not drafters or work / drafters < 0.95 else 0.05
        return PoolReading(streams=streams, drafter_busy=busy, draft_wait_s=waits, **more)

    return reading


@pytest.mark.parametrize("work", [0.2, 0.69, 0.9, 1.5, 2.6, 4.0])
@pytest.mark.parametrize("start", [1, 6])
def test_drafters_reach_what_their_work_asks_for_and_stay(work: float, start: int) -> None:
    history = _simulate(_work(16, work), 1200, start=(1, start))
    sizes = [drafters for _, _, drafters in history]
    wanted = math.ceil(work / CONFIG.drafter_busy)
    assert wanted <= sizes[-1] <= wanted + 1, "headroom may keep one more"
    assert sizes == sorted(sizes, reverse=start == 6), "one direction: no flapping"
    assert history[-1][0] < 400, "settled early and silent after"


def test_noise_around_the_target_does_not_flap() -> None:
    noise = random.Random(7)

    def reading(now: float, verifiers: int, drafters: int) -> PoolReading:
        busy = min(1.0, max(0.0, (1.4 + noise.gauss(0, 0.25)) / drafters))
        return PoolReading(streams=16, drafter_busy=busy)

    history = _simulate(reading, 3600, start=(1, 2))
    assert len(history) <= 3, history


def test_an_idle_cell_gives_its_drafters_back_and_the_first_stream_brings_one() -> None:
    def reading(now: float, verifiers: int, drafters: int) -> PoolReading:
        streams = 0 if now < 1000 else 4
        return PoolReading(streams=streams, drafter_busy=0.0 if drafters else None)

    history = _simulate(reading, 1200, start=(1, 3))
    assert [drafters for _, _, drafters in history] == [3, 1, 0, 1]
    assert 60 <= history[1][0] < 70
    assert 300 <= history[2][0] < 310, "idle since the beginning, whatever left meanwhile"
    assert history[3][0] == 1000, "who waits for the first drafter waits for nothing else"


@pytest.mark.parametrize(
    ("floor", "leave_s", "start", "sizes"),
    [(2, 0, 4, [4, 2]), (0, 70, 6, [6, 2, 1, 0])],
    ids=["not below its bound", "though it shrank under load before"],
)
def test_a_pool_goes_when_nobody_is_left(
    floor: int, leave_s: float, start: int, sizes: list[int]
) -> None:
    def reading(now: float, verifiers: int, drafters: int) -> PoolReading:
        if now < leave_s:
            return PoolReading(streams=8, drafter_busy=min(1.0, 0.9 / drafters))
        return PoolReading(streams=0, drafter_busy=0.0)

    config = replace(CONFIG, min_drafters=floor)
    history = _simulate(reading, 1200, start=(1, start), config=config)
    assert [drafters for _, _, drafters in history] == sizes


def test_verifiers_follow_pages() -> None:
    history = _simulate(
        lambda now, v, d: PoolReading(streams=8, drafter_busy=0.5, pages=min(1.0, 1.7 / v)), 900
    )
    assert [verifiers for _, verifiers, _ in history][-1] == math.ceil(1.7 / CONFIG.verifier_pages)


@pytest.mark.parametrize(("field", "limit"), [("ttft_s", 0.5), ("itl_s", 0.05), ("queue_s", 0.5)])
def test_verifiers_follow_promises(field: str, limit: float) -> None:
    config = replace(CONFIG, slo_ttft_ms=500, slo_itl_ms=50, queue_s=0.5)

    def reading(now: float, verifiers: int, drafters: int) -> PoolReading:
        return PoolReading(streams=32, drafter_busy=0.5, **{field: 2.5 * limit / verifiers})

    history = _simulate(reading, 1800, config=config)
    assert [verifiers for _, verifiers, _ in history] == [1, 2, 3]
    need = verifiers_needed(reading(0, 1, 1), 1, config)
    assert need.at_least == 2
    assert "at most" in need.why


@pytest.mark.parametrize(
    ("needed", "told", "size", "at_least", "enough"),
    [
        (drafters_needed, {}, 2, 1, 2),  # no drafter has told yet how busy it is
        (drafters_needed, {"drafter_busy": 0.45}, 3, 2, 3),  # two would be too near to 0.7
        (drafters_needed, {"drafter_busy": 0.1, "draft_wait_s": 0.011}, 2, 3, 3),
        (drafters_needed, {"drafter_busy": 0.1, "draft_wait_s": 0.009}, 2, 1, 2),
        (drafters_needed, {"drafter_busy": 0.1, "draft_wait_s": 0.007}, 2, 1, 1),
        (verifiers_needed, {"pages": 0.5}, 3, 2, 3),  # two would be too near to 0.8
        (verifiers_needed, {"pages": 0.8}, 3, 3, 4),
        (verifiers_needed, {"streams": 0, "queue_s": 9.0}, 1, 1, 1),  # of requests that are over
        (verifiers_needed, {"queued": 5}, 3, 1, 3),  # a line before the door keeps them
    ],
)
def test_what_replicas_are_needed_for(
    needed: Any, told: dict[str, Any], size: int, at_least: int, enough: int
) -> None:
    need = needed(PoolReading(**{"streams": 1, **told}), size, CONFIG)
    assert (need.at_least, need.enough) == (at_least, enough)


def test_shrinking_never_asks_for_growing_again() -> None:
    for size in range(1, 7):
        for percent in range(101):
            need = drafters_needed(PoolReading(streams=4, drafter_busy=percent / 100), size, CONFIG)
            if need.enough < size:
                left = PoolReading(
                    streams=4, drafter_busy=min(1.0, size * percent / 100 / need.enough)
                )
                again = drafters_needed(left, need.enough, CONFIG)
                assert again.at_least <= need.enough


def test_bounds_hold_whatever_is_asked_and_mend_what_is_outside() -> None:
    assert step(PoolHistory(), 1, PoolNeed(50, 50, ""), (1, 4), CALM, 0.0)[1] == 1, (
        "not at the first look"
    )
    memory, size = step(PoolHistory(), 1, PoolNeed(50, 50, ""), (1, 4), CALM, 0.0)
    assert step(memory, size, PoolNeed(50, 50, ""), (1, 4), CALM, 7.0)[1] == 4
    assert step(PoolHistory(), 9, PoolNeed(1, 9, ""), (1, 4), CALM, 0.0)[1] == 4, (
        "above the bound: at once"
    )
    assert step(PoolHistory(), 1, PoolNeed(1, 1, ""), (0, 0), CALM, 0.0)[1] == 0, (
        "even the last one"
    )
    assert step(PoolHistory(), 1, PoolNeed(0, 0, ""), (2, 4), CALM, 0.0)[1] == 2, (
        "below the bound: at once"
    )


@pytest.mark.parametrize(
    ("size", "looks", "then"),
    [
        (4, [(0, 1), (30, 3), (60, 1)], 3),  # what was needed most meanwhile
        # a need begins anew once it was interrupted
        (2, [(0, 1), (30, 3), (35, 1), (61, 1)], 2),
        (2, [(0, 3), (4, 1), (7, 3)], 2),
        (2, [(0, 3), (4, 2), (7, 3)], 2),
    ],
)
def test_a_pool_changes_by_what_was_needed_without_a_break(
    size: int, looks: list[tuple[int, int]], then: int
) -> None:
    memory = PoolHistory()
    for now, need in looks:
        memory, size = step(memory, size, PoolNeed(need, need, ""), (1, 4), CALM, float(now))
    assert size == then


def test_a_pool_rests_after_a_change() -> None:
    memory, size = step(PoolHistory(short_since=0.0), 1, PoolNeed(2, 2, ""), (1, 4), CALM, 10.0)
    assert size == 2
    memory, size = step(memory, 2, PoolNeed(3, 3, ""), (1, 4), CALM, 11.0)
    memory, size = step(memory, 2, PoolNeed(3, 3, ""), (1, 4), CALM, 20.0)
    assert size == 2, "patience is over, the rest is not"
    assert step(memory, 2, PoolNeed(3, 3, ""), (1, 4), CALM, 30.0)[1] == 3
    idle = PoolHistory(idle_since=0.0, rests_until=400.0)
    sizes = [step(idle, 1, PoolNeed(0, 0, ""), (0, 4), CALM, now)[1] for now in (399.0, 400.0)]
    assert sizes == [1, 0]


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("min_verifiers", 0, "min_verifiers"),
        ("max_verifiers", 0, "max_verifiers"),
        ("max_drafters", -1, "max_drafters"),
        ("min_drafters", 9, "min_drafters"),  # a range that is none
        ("drafter_busy", 0.0, "drafter_busy"),
        ("headroom", 1.5, "headroom"),
        ("look_s", 0.0, "look_s"),
    ],
)
def test_settings_that_cannot_work_are_named(key: str, value: float, named: str) -> None:
    with pytest.raises(ConfigError, match=f"autoscale.{named}: "):
        AutoscaleConfig(**{key: value})
    assert AutoscaleConfig(min_drafters=3, max_drafters=3).bounds["drafters"] == (3, 3)


def test_patience_begins_anew_where_nobody_looked_and_rests_go_on() -> None:
    spare, short = PoolReading(streams=1, drafter_busy=0.1), PoolReading(streams=9, drafter_busy=1)
    patient = Autoscaler(CONFIG)
    assert patient.look(spare, 1, 4, 0.0) == (1, 4)
    patient.forget()
    assert patient.look(spare, 1, 4, CONFIG.down_after_s) == (1, 4)
    assert patient.look(spare, 1, 4, 2 * CONFIG.down_after_s) == (1, 1)
    resting = Autoscaler(CONFIG)
    resting.rest(0.0)
    resting.forget()
    for now in (1.0, CONFIG.cool_down_s - 1):
        assert resting.look(short, 1, 1, now) == (1, 1)
    assert resting.look(short, 1, 1, CONFIG.cool_down_s) == (1, 2)
    assert resting.why == {"verifiers": "0% of the pages", "drafters": "drafters are 100% busy"}
