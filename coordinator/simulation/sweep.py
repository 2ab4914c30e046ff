"""Many scenarios that differ in load, policy and pool sizes; a table of what came of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from coordinator.simulation.scenario import Scenario
from dspark.tables import aligned

AXES = ("policy", "verifiers", "drafters", "concurrency", "rate")  # the last one varies fastest


def scenarios(base: Scenario, axes: dict[str, Sequence[Any]]) -> Iterator[Scenario]:
    """Every combination of the values given for fields of the scenario."""
    named = [name for name in AXES if name in axes]
    for values in itertools.product(*(axes[name] for name in named)):
        changes = dict(zip(named, values, strict=True))
        if "concurrency" in changes or "rate" in changes:
            changes = {"concurrency": 0, "rate": 0.0, **changes}
        yield dataclasses.replace(base, **changes)


def table(points: Sequence[dict[str, Any]]) -> str:
    """For people."""
    head = ("policy", "V", "D", "load", "tok/s", "per user", "TTFT p50/p99 ms", "ITL p50/p99 ms", "tau", "budget")
    rows = [(*head, "V busy", "D busy", "C busy", "wall s")]
    for point in points:
        load = f"{point['concurrency']}" if point["concurrency"] else f"{point['rate']:g}/s"
        busy = [f"{share['mean']:.2f}" if (share := point[name]) else "-" for name in _BUSY]
        rows.append(
            (
                point["series"],
                str(point["verifiers"]),
                str(point["drafters"]),
                load,
                f"{point['tok_s']:,.0f}",
                f"{point['tok_s_user']:,.1f}",
                _two(point["ttft_ms"]),
                _two(point["itl_ms"]),
                _one(point["tau"]),
                _one(point["budget"]),
                *busy,
                f"{point['wall_s']:.1f}",
            )
        )
    return "\n".join(aligned(rows, right=True))


_BUSY = ("verify_busy", "draft_busy", "coordinator_busy")


def _two(spread: dict[str, float] | None) -> str:
    return "-" if spread is None else f"{spread['p50']:.1f}/{spread['p99']:.1f}"


def _one(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
