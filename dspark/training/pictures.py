"""The plots of an evaluation: acceptance along the block, the threshold sweep, reliability."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def draw(report: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes `acceptance.png` and, where there is confidence, `sweep.png` and `error.png`; returns what was written."""
    drawn = [_acceptance(report, folder / "acceptance.png")]
    swept = {t: p for t, p in report["temperatures"].items() if any("sweep" in r for r in p["datasets"].values())}
    if swept:
        drawn.append(_sweep(swept, folder / "sweep.png"))
        drawn.append(_error(swept, folder / "error.png"))
    return drawn


def _acceptance(report: Mapping[str, Any], path: Path) -> Path:
    from dspark import plots

    figure, axes = plots.panels(len(report["temperatures"]), (4.6, 3.6))
    for pane, (temperature, part) in zip(axes, report["temperatures"].items(), strict=True):
        for name, row in part["datasets"].items():
            points = [(k + 1, share) for k, share in enumerate(row["conditional"]) if not math.isnan(share)]
            pane.plot(*zip(*points, strict=True), marker=".", label=f"{name}, tau {row['tau']:.2f}")
        pane.set_title(temperature)
        pane.set_xlabel("slot")
        pane.set_ylabel("accepted, given the slot before")
    plots.write(figure, path)
    return path


def _sweep(swept: Mapping[str, Any], path: Path) -> Path:
    from dspark import plots

    figure, axes = plots.panels(2 * len(swept), (4.2, 3.6))
    for number, (temperature, part) in enumerate(swept.items()):
        left, right = axes[2 * number : 2 * number + 2]
        for name, row in part["datasets"].items():
            points = row["sweep"]
            at = [point["threshold"] for point in points]
            (line,) = left.plot(at, [point["tau"] for point in points], marker=".", label=f"{name}: tau")
            verified = [point["verified"] for point in points]
            left.plot(at, verified, linestyle="--", color=line.get_color(), label=f"{name}: verified")
            right.plot(
                [point["verified_per_committed"] for point in points],
                [point["tau"] / points[0]["tau"] for point in points],
                marker=".",
                label=name,
            )
        left.set_title(temperature)
        left.set_xlabel("threshold")
        left.set_ylabel("tokens a round")
        right.axhline(0.95, color="grey", linewidth=0.7)
        right.set_xlabel("verified tokens per committed token")
        right.set_ylabel("share of tau kept")
    plots.write(figure, path)
    return path


def _error(swept: Mapping[str, Any], path: Path) -> Path:
    from dspark import plots

    figure, axes = plots.panels(len(swept), (4.6, 3.6))
    for pane, (temperature, part) in zip(axes, swept.items(), strict=True):
        for name, row in part["datasets"].items():
            for kind, style in (("raw", ":"), ("calibrated", "-")):
                if kind in (row["confidence"] or {}):
                    errors = row["confidence"][kind]["ece"]
                    pane.plot(range(1, len(errors) + 1), errors, linestyle=style, marker=".", label=f"{name}, {kind}")
        pane.set_title(temperature)
        pane.set_xlabel("slot")
        pane.set_ylabel("calibration error of survival")
    plots.write(figure, path)
    return path
