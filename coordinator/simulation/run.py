"""Runs one simulation: the coordinator's own scheduler and lanes, simulated workers and time."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any, NamedTuple

from coordinator.lanes.lane import Lane
from coordinator.lanes.lane_context import LaneContext
from coordinator.queue.scheduler import Scheduler
from coordinator.simulation.drafter import SimulatedDrafter
from coordinator.simulation.load import Recorder, SimulatedLoad
from coordinator.simulation.pair import SyntheticPair
from coordinator.simulation.scenario import Scenario
from coordinator.simulation.verifier import SimulatedVerifier
from coordinator.simulation.virtual_loop import run_virtual
from coordinator.simulation.world import Device, KVShape, World
from dspark.loadgen.summary import spread
from dspark.runtime.telemetry import Metrics
from dspark.synthetic.oracle import SyntheticOracle

MOST = 1 << 20  # requests in rounds, and waiting
PAGE_SIZE = 16


def simulate(scenario: Scenario) -> dict[str, Any]:
    """The numbers of one scenario, a pure function of it except `wall_s`; has its own event
    loop."""
    began = time.perf_counter()
    found = run_virtual(_run(scenario))
    return {**found, "wall_s": round(time.perf_counter() - began, 2)}


async def _run(scenario: Scenario) -> dict[str, Any]:
    return await _Cell(scenario).run()


class _Marks(NamedTuple):
    """Counters at one moment."""

    busy_s: dict[str, list[float]]  # by kind of process
    rounds: int
    committed: int
    verified: float
    cohorts: float


class _Cell:
    """One simulated cell, built inside the event loop that it runs in."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario, self._clock, self._metrics = scenario, asyncio.get_running_loop(), Metrics()
        config = replace(
            scenario.config, max_running=max(scenario.concurrency, MOST), max_queued=MOST
        )
        self._admission = Scheduler(config, self._clock, self._metrics)
        kv = KVShape(scenario.kv_tokens // PAGE_SIZE, PAGE_SIZE, scenario.prefill_chunk)
        pair = SyntheticPair(SyntheticOracle(scenario.spec))
        world = World(pair, scenario.spec, scenario.hops, kv, scenario.cores)
        self._shared = LaneContext(self._clock, self._metrics, config)
        self._processors = [Device(world.cores) for _ in range(scenario.coordinators)]
        self._drafters = [
            SimulatedDrafter(world, f"draft/{n}", n + 1) for n in range(scenario.drafters)
        ]
        self._verifiers = [
            SimulatedVerifier(
                world, f"verify/{n}", self._processors[n % scenario.coordinators], self._drafters
            )
            for n in range(scenario.verifiers)
        ]
        self._lanes = [
            Lane(verifier.facts, verifier, self._admission, self._shared)
            for verifier in self._verifiers
        ]
        for lane in self._lanes:
            for drafter in self._drafters:
                lane.drafter_joined(drafter)
            self._admission.lane_joined(lane)

    async def run(self) -> dict[str, Any]:
        scenario, clock = self._scenario, self._clock
        for verifier, lane, at in zip(
            self._verifiers, self._lanes, scenario.verifiers_lost_s, strict=False
        ):
            clock.call_later(at, _lose_verifier, self._admission, lane, verifier)
        for drafter, at in zip(self._drafters, scenario.drafters_lost_s, strict=False):
            clock.call_later(at, self._lose_drafter, drafter)
        recorder = Recorder(scenario.warmup_s, scenario.warmup_s + scenario.window_s)
        users = SimulatedLoad(scenario, self._admission, recorder)
        asking = clock.create_task(users.run())
        await asyncio.sleep(recorder.opens - clock.time())
        before = self._marks()
        await asyncio.sleep(recorder.closes - clock.time())
        after = self._marks()
        lost = [lane.why_lost for lane in self._lanes if lane.why_lost]
        if len(lost) > len(scenario.verifiers_lost_s):
            # a bug: what was measured does not count
            raise RuntimeError(f"a lane ended before the simulation did: {lost}")
        asking.cancel()
        return self._said(recorder, users, before, after)

    def _lose_drafter(self, drafter: SimulatedDrafter) -> None:
        drafter.lose()
        for lane in self._lanes:
            lane.drafter_left(drafter)
        self._shared.load.pop(drafter, None)

    def _marks(self) -> _Marks:
        return _Marks(
            {
                "verify": [each.device.busy_until_now_s for each in self._verifiers],
                "draft": [each.device.busy_until_now_s for each in self._drafters],
                "coordinator": [each.busy_until_now_s for each in self._processors],
            },
            sum(lane.rounds for lane in self._lanes),
            sum(lane.committed_by_rounds for lane in self._lanes),
            self._metrics.value("spec_decode_num_verified_tokens_total"),
            self._metrics.value("cohorts_total"),
        )

    def _said(
        self, recorder: Recorder, users: SimulatedLoad, before: _Marks, after: _Marks
    ) -> dict[str, Any]:
        """The numbers of a run. The keys are those of `dspark bench` where they mean the same."""
        scenario, window = self._scenario, self._scenario.window_s
        rounds, committed, verified, cohorts = (
            late - early for early, late in zip(before[1:], after[1:], strict=True)
        )
        rates = sorted(recorder.rates)
        return {
            "series": scenario.policy,
            "loop": "closed" if scenario.concurrency else "open",
            "concurrency": scenario.concurrency or None,
            "rate": scenario.rate or None,
            "verifiers": scenario.verifiers,
            "drafters": scenario.drafters,
            "coordinators": scenario.coordinators,
            "answers": recorder.answers,
            "failed": recorder.failed,
            "refused": users.refused,
            "preempted": round(self._metrics.value("num_preemptions_total")),
            "window_s": window,
            "tokens": recorder.tokens,
            "tok_s": round(recorder.tokens / window, 2),
            "tok_s_user": round(sum(rates) / len(rates), 2) if rates else 0.0,
            "tok_s_user_p10": round(rates[len(rates) // 10], 2) if rates else 0.0,
            "ttft_ms": spread(recorder.first),
            "itl_ms": spread(recorder.token),
            "latency_ms": spread(recorder.whole),
            "tau": round(committed / rounds, 4) if rounds else None,
            "verified_per_token": round(verified / committed, 4) if committed else None,
            "budget": round(verified / rounds, 4) if rounds else None,
            "cohort": round(rounds / max(cohorts, 1), 2),
            **{
                f"{name}_busy": _shares(busy_s, after.busy_s[name], window)
                for name, busy_s in before.busy_s.items()
            },
        }


def _lose_verifier(admission: Scheduler, lane: Lane, verifier: SimulatedVerifier) -> None:
    """Loses a verifier as the coordinator does: its sequences move with their committed tokens."""
    verifier.close("lost")
    admission.lane_left(lane)


def _shares(before: list[float], after: list[float], window: float) -> dict[str, float] | None:
    """Share of the window in which devices were busy: mean, extremes; None for an empty pool."""
    shares = [(late - early) / window for early, late in zip(before, after, strict=True)]
    if not shares:
        return None
    return {
        "mean": round(sum(shares) / len(shares), 4),
        "least": round(min(shares), 4),
        "most": round(max(shares), 4),
    }
