"""The plots of the results page."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dspark import plots
from training.corpus import DOMAINS
from training.lab import results
from training.lab.plan import BLOCKS, DEPTHS, Run, dspark
from training.lab.results import Results
from training.lab.statistics import intervals
from training.lab.tables import HOT, NAMES, first


def acceptance(found: Results, path: Path) -> None:
    """Conditional acceptance along the block, a pane a domain."""
    figure, panes = plots.panels(len(DOMAINS), (4, 3.4))
    for pane, domain in zip(panes, DOMAINS, strict=True):
        for kind, name in NAMES.items():
            if kind in found:
                shares = results.acceptance(found[kind], HOT, domain)
                pane.plot(range(1, len(shares) + 1), shares, marker="o", markersize=3, label=name)
        pane.set_title(domain)
        pane.set_xlabel("slot")
    panes[0].set_ylabel("accepted, given the slots before, T=1")
    plots.write(figure, path)


def curves(found: Results, path: Path) -> None:
    """Held-out loss, from its own end, and held-out expected tau against the step; every seed a line."""
    figure, panes = plots.panels(2, (5.5, 3.8))
    for number, (kind, name) in enumerate((k, n) for k, n in NAMES.items() if k in found):
        for seed, result in enumerate(found[kind]):
            steps = [point["step"] for point in result["curve"]]
            label = name if seed == 0 else None
            loss = np.array([point["held_out_loss"] for point in result["curve"]])
            # Losses of different recipes have no common scale: each is shown as a multiple of its own end.
            panes[0].plot(steps, loss / loss[-1], color=f"C{number}", linewidth=1, label=label)
            taus = [point["held_out_tau"] for point in result["curve"]]
            panes[1].plot(steps, taus, color=f"C{number}", linewidth=1, label=label)
    panes[0].set_ylabel("held-out loss / its last value")
    panes[1].set_ylabel("held-out expected tau, T=1")
    for pane in panes:
        pane.set_xlabel("step")
    plots.write(figure, path, from_zero=False)


def ablations(found: Results, path: Path) -> None:
    """tau at T=1 by depth and by length of the block."""
    figure, panes = plots.panels(2, (4.5, 3.4))
    lines: Sequence[tuple[str, str]] = (("dspark", "DSpark"), ("dflash", "DFlash"))
    for pane, field, values in ((panes[0], "layers", DEPTHS), (panes[1], "block", BLOCKS)):
        for family, name in lines:
            points = []
            for value in values:
                run = dspark(**{field: value}) if family == "dspark" else Run("dflash", **{field: value})  # type: ignore[arg-type]
                result = first(found, run)
                if result is not None:
                    points.append((value, intervals([results.counts(result, HOT)])["mean"]))
            if points:
                middle = np.array([at.middle for _, at in points])
                reach = np.array([[at.middle - at.low, at.high - at.middle] for _, at in points]).T
                pane.errorbar([x for x, _ in points], middle, yerr=reach, marker="o", markersize=4, label=name)
        pane.set_xlabel(field)
    panes[0].set_ylabel("tau, T=1, mean of domains")
    plots.write(figure, path)
