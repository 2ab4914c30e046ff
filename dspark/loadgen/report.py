"""Reports of a sweep: a table, plots, and facts of the machine."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dspark.errors import InvalidRequest, in_short
from dspark.plots import by_streams, panels, write
from dspark.runtime.process import usable
from dspark.tables import aligned

Column = Callable[[dict[str, Any]], str | None]
NEEDED = {"series", "tok_s", "tok_s_user", "concurrency", "rate", "budget"}


def _number(name: str, digits: int) -> Column:
    return lambda point: None if point.get(name) is None else f"{point[name]:,.{digits}f}"


def _quantiles(name: str) -> Column:
    return lambda point: (
        f"{point[name]['p50']:.1f}/{point[name]['p99']:.1f}" if point.get(name) else None
    )


def _counts(name: str) -> Column:
    return lambda point: (
        " ".join(f"{key} {count:.0f}" for key, count in point.get(name, {}).items()) or None
    )


def _busy(pool: str) -> Column:
    return lambda point: f"{busy['mean']:.2f}" if (busy := point.get(f"{pool}_busy")) else None


COLUMNS: dict[str, Column] = {
    "series": lambda point: str(point["series"]),
    "V": _number("verifiers", 0),
    "D": _number("drafters", 0),
    "load": lambda point: (
        f"{point['concurrency']} users" if point["concurrency"] else f"{point['rate']:g}/s"
    ),
    "tok/s": _number("tok_s", 1),
    "tok/s/user": _number("tok_s_user", 1),
    "TTFT p50/p99 ms": _quantiles("ttft_ms"),
    "ITL p50/p99 ms": _quantiles("itl_ms"),
    "tau": _number("tau", 2),
    "budget": _number("budget", 2),
    "V busy": _busy("verify"),
    "D busy": _busy("draft"),
    "C busy": _busy("coordinator"),
    "bytes/token": _counts("bytes_per_token"),
    "errors": _counts("errors"),
    "wall s": _number("wall_s", 1),
}


def table(points: Sequence[dict[str, Any]]) -> str:
    """A text table of measured or simulated points, without columns that are empty for all."""
    columns = [(title, [show(point) for point in points]) for title, show in COLUMNS.items()]
    told = [[title, *(cell or "-" for cell in cells)] for title, cells in columns if any(cells)]
    return "\n".join(aligned([*zip(*told, strict=True)], right=True))


def load(path: Path) -> list[dict[str, Any]]:
    """The points of a saved run. InvalidRequest if the file holds none."""
    try:
        points = json.loads(path.read_text(encoding="utf-8"))["points"]
        if not all(point.keys() >= NEEDED for point in points):
            raise ValueError("its points lack figures")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(
            "with", f"{path} is no saved run of `dspark bench`: {in_short(error)}"
        ) from None
    return list(points)


# features of a processor that change the speed of matrix products
UNITS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


def machine() -> dict[str, str]:
    """Commit, day and machine of a result. The commit is that of the checkout this runs in;
    installed, it has none, whatever repository lies around."""
    root = Path(__file__).resolve().parents[2]
    revision = ""
    with contextlib.suppress(OSError):
        if (root / ".git").exists():  # of a worktree it is a file
            found = subprocess.run(
                ["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True
            )
            revision = found.stdout.strip()
    facts = ""
    with contextlib.suppress(OSError):
        facts = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    named = re.search(r"model name\s*: (.*)", facts)
    units = " ".join(unit for unit in UNITS if re.search(rf"\b{unit}\b", facts))
    cores = f"{len(usable()) or os.cpu_count()} of {os.cpu_count()} CPU cores"
    return {
        "commit": revision or "unknown",
        "date": datetime.date.today().isoformat(),
        "machine": f"{cores}, {named[1] if named else platform.machine()}, "
        f"{units or platform.system()}",
    }


def _pools(point: dict[str, Any]) -> str:
    """Pool sizes of a simulated point; empty for a measured one, where they are unknown."""
    return f" {point['verifiers']}V {point['drafters']}D" if "verifiers" in point else ""


def draw(points: Sequence[dict[str, Any]], path: Path) -> None:
    """Plots one line per series and pool sizes, one point per load; the suffix of `path` decides
    the format. For simulated points a third pane shows how busy the pools were.
    """
    simulated = all("verify_busy" in point for point in points)
    figure, (speed, budget, *busy) = panels(2 + simulated, (5.5, 4.2))
    closed = all(point["concurrency"] for point in points)
    several = len({_pools(point) for point in points if _pools(point)}) > 1
    series: dict[str, list[dict[str, Any]]] = {}
    for point in points:
        name = point["series"] + (_pools(point) if several else "")
        series.setdefault(name, []).append(point)
    for name, own in series.items():
        loads = [point["concurrency"] or point["rate"] for point in own]
        speed.plot([p["tok_s"] for p in own], [p["tok_s_user"] for p in own], "o-", label=name)
        for point, load in zip(own, loads, strict=True):
            at = (point["tok_s"], point["tok_s_user"])
            speed.annotate(f"{load:g}", at, textcoords="offset points", xytext=(4, 4), fontsize=8)
        _line(budget, loads, [point["budget"] for point in own], "o-", name)
        for axes in busy:
            for pool, dash in (("verify_busy", "-"), ("draft_busy", "--")):
                shares = [point[pool] and point[pool]["mean"] for point in own]
                _line(axes, loads, shares, f"o{dash}", f"{name} {pool.removesuffix('_busy')}")
    speed.set(xlabel="tokens a second, in all", ylabel="tokens a second, per user", title="speed")
    load_name = "streams" if closed else "requests a second"
    budget.set(xlabel=load_name, ylabel="drafted tokens verified a round", title="budget")
    for axes in busy:
        axes.set(xlabel=load_name, ylabel="share of time at work", title="pools")
    if closed:
        by_streams(budget)
    write(figure, path)


def _line(
    axes: Any, loads: Sequence[float], values: Sequence[float | None], form: str, label: str
) -> None:
    """Plots the values that are not None against their loads."""
    known = [(load, value) for load, value in zip(loads, values, strict=True) if value is not None]
    if known:
        axes.plot(*zip(*known, strict=True), form, label=label)
