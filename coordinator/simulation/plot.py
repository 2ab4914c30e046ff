"""Pictures of a sweep: speed per user against speed in all, verified tokens a round against load, shares of time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dspark.plots import panels, write


def draw(points: Sequence[dict[str, Any]], path: Path) -> None:
    """One line per policy and pool, one point per load; the name of `path` decides the format."""
    figure, (speed, budget, busy) = panels(3, (5.3, 4.4))
    closed = all(point["concurrency"] for point in points)
    pools = len({(point["verifiers"], point["drafters"]) for point in points}) > 1
    series: dict[str, list[dict[str, Any]]] = {}
    for point in points:
        name = point["series"] + (f" {point['verifiers']}V {point['drafters']}D" if pools else "")
        series.setdefault(name, []).append(point)
    for name, own in series.items():
        loads = [point["concurrency"] or point["rate"] for point in own]
        speed.plot([p["tok_s"] for p in own], [p["tok_s_user"] for p in own], "o-", label=name)
        drafted = [(load, 1 + p["budget"]) for load, p in zip(loads, own, strict=True) if p["budget"]]
        if drafted:
            budget.plot([load for load, _ in drafted], [value for _, value in drafted], "o-", label=name)
        for pool, dash in (("verify_busy", "-"), ("draft_busy", "--")):
            shares = [(load, p[pool]["mean"]) for load, p in zip(loads, own, strict=True) if p[pool]]
            label = f"{name} {pool.removesuffix('_busy')}"
            busy.plot([load for load, _ in shares], [share for _, share in shares], f"o{dash}", label=label)
    speed.set(xlabel="tokens a second, in all", ylabel="tokens a second, per user", title="speed")
    load_name = "streams" if closed else "requests a second"
    budget.set(xlabel=load_name, ylabel="tokens verified a round, anchor included", title="budget")
    busy.set(xlabel=load_name, ylabel="share of time at work", title="pools")
    write(figure, path)
