"""A drafter version that lies loses the ratio rules for good, and nothing else; honest ones lose
nothing."""

import numpy as np
import pytest

from coordinator.lanes.monitor import LOOK_EVERY, VERSIONS, WINDOW, Monitor
from dspark.runtime.telemetry import Metrics
from dspark.types import PLACES, Draws, Rule, SamplingParams

BLOCK, TOKEN = SamplingParams(rule=Rule.BLOCK), SamplingParams(rule=Rule.TOKEN)
SAFE = (SamplingParams(rule=Rule.COUPLED), SamplingParams(temperature=0.0, rule=Rule.BLOCK))


def even(version: str, slots: int, drift: float = 0.0) -> Draws:
    each = slots // PLACES
    return Draws(version, each * PLACES, (each,) * PLACES, drift * slots, 0.2 * slots)


@pytest.fixture
def monitor(metrics: Metrics) -> Monitor:
    return Monitor(metrics)


def test_honest_versions_stay_trusted(monitor: Monitor, metrics: Metrics) -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        counts = rng.multinomial(1024, np.full(PLACES, 1 / PLACES))
        drift = float(rng.normal(0.0, (0.2 * 1024) ** 0.5))
        monitor.observe([Draws("honest", 1024, tuple(counts.tolist()), drift, 0.2 * 1024)])
    assert all(monitor.trusts("honest", params) for params in (BLOCK, TOKEN, *SAFE))
    assert metrics.value("monitor_draws_total", drafter="honest") == 300 * 1024
    assert metrics.value("monitor_evidence", drafter="honest") < 0.7
    assert not monitor.distrusts_all(["honest"])


def test_a_liar_loses_the_ratio_rules_and_no_others(monitor: Monitor, metrics: Metrics) -> None:
    for _ in range(64):
        monitor.observe([even("liar", LOOK_EVERY, drift=-0.1), even("other", LOOK_EVERY)])
    assert not monitor.trusts("liar", BLOCK)
    assert not monitor.trusts("liar", TOKEN)
    assert all(monitor.trusts("liar", params) for params in SAFE)
    assert monitor.trusts("other", BLOCK)
    assert "drift" in monitor.why_not("liar")
    assert monitor.why_not("other") == monitor.why_not("never seen") == ""
    assert metrics.value("monitor_alarms_total", drafter="liar", statistic="drift") == 1
    assert monitor.distrusts_all(["liar"])
    assert not monitor.distrusts_all(["liar", "other"])
    assert not monitor.distrusts_all(["liar", "never seen"])
    assert not monitor.distrusts_all([])


def test_an_alarm_is_for_good(monitor: Monitor, metrics: Metrics) -> None:
    monitor.observe([even("liar", 4096, drift=-0.3)])
    monitor.observe([even("liar", 1 << 26)])
    assert not monitor.trusts("liar", BLOCK)
    assert metrics.value("monitor_alarms_total", drafter="liar", statistic="drift") == 1


def test_a_lie_that_begins_late_is_found_as_soon(monitor: Monitor) -> None:
    for _ in range(200):
        monitor.observe([even("late", WINDOW)])
    spent = 0
    while monitor.trusts("late", BLOCK):
        monitor.observe([even("late", 8192, drift=-0.02)])
        spent += 8192
    assert spent < 40 * 8192


def test_versions_are_bounded(monitor: Monitor, metrics: Metrics) -> None:
    for number in range(VERSIONS + 5):
        monitor.observe([even(f"v{number}", 1024, drift=-0.5)])
    assert not monitor.trusts(f"v{VERSIONS - 1}", BLOCK)
    assert monitor.trusts(f"v{VERSIONS}", BLOCK)
    assert metrics.value("dropped_total", kind="draws", reason="too_many_versions") == 5
