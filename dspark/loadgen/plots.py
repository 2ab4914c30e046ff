"""Two pictures of a sweep: speed per user against speed in all, and the verification budget against the load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dspark.plots import by_streams, panels, write


def draw(points: Sequence[dict[str, Any]], path: Path) -> None:
    """One line per series, one point per load; `path` decides the format."""
    figure, (speed, budget) = panels(2, (5.5, 4.2))
    closed = all(point["concurrency"] for point in points)
    for series in dict.fromkeys(point["series"] for point in points):
        own = [point for point in points if point["series"] == series]
        loads = [point["concurrency"] or point["rate"] for point in own]
        speed.plot([p["tok_s"] for p in own], [p["tok_s_user"] for p in own], "o-", label=series)
        for point, load in zip(own, loads, strict=True):
            at = (point["tok_s"], point["tok_s_user"])
            speed.annotate(f"{load:g}", at, textcoords="offset points", xytext=(4, 4), fontsize=8)
        drafted = [(load, p["budget"]) for load, p in zip(loads, own, strict=True) if p["budget"] is not None]
        if drafted:
            budget.plot([load for load, _ in drafted], [value for _, value in drafted], "o-", label=series)
    speed.set(xlabel="tokens a second, in all", ylabel="tokens a second, per user", title="speed")
    load_name = "streams" if closed else "requests a second"
    budget.set(xlabel=load_name, ylabel="drafted tokens verified a round", title="budget")
    if closed:
        by_streams(budget)
    write(figure, path)
