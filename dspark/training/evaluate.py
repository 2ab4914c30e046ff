"""Measures a drafter's accepted length on data sets, by the papers' protocol: `training/metrics.py`
holds the definitions.

The prompt is a user's first turn, temperatures are 1 and 0, blocks are verified whole, and a text
has up to `new_tokens` tokens. Figures of a domain are plain means of its data sets, the last row is
the plain mean of all data sets.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dspark import plots
from dspark.errors import ConfigError
from dspark.model.calibration import IDENTITY, Bucket, RuleName, SlotFit, load_calibration
from dspark.model.checkpoint import fingerprint
from dspark.progress import progress
from dspark.training import fitting, metrics
from dspark.training.asked import by_name, domain_of
from dspark.training.disk import check_folder, write_json
from dspark.training.judged import Judge, Text
from dspark.training.rounds import TOP_K_CUT

TEMPERATURES = (1.0, 0.0)
NEW_TOKENS = 128
SEED = 980406
THRESHOLDS = tuple(n / 20 for n in range(20))


def evaluate(
    target: Path,
    drafter: Path,
    datasets: Sequence[Path],
    *,
    temperatures: Sequence[float] = TEMPERATURES,
    rule: RuleName = "token",
    new_tokens: int = NEW_TOKENS,
    cut: int | None = TOP_K_CUT,
    rows: int = 0,
    seed: int = SEED,
    thresholds: Sequence[float] = THRESHOLDS,
    out: Path | None = None,
    keep: Path | None = None,
    bar: bool = True,
) -> dict[str, Any]:
    """Measures every data set at every temperature; writes `metrics.json` and plots to `out`.
    Returns the metrics.

    `rule` is the acceptance rule, `cut` the entries a draft is cut to (None: uncut), `rows` the
    most rows of one data set (0: all). Thresholds are swept over the same texts. `keep` is a folder
    that keeps the target's answers for the next drafter.
    """
    begun, thresholds = time.monotonic(), sorted(thresholds)
    files = by_name(datasets)
    if not all(0 <= threshold <= 1 for threshold in thresholds):
        raise ConfigError("thresholds: every one is from 0 to 1")
    check_folder("out", out)
    check_folder("keep", keep)
    judge = Judge.load(target, drafter, new_tokens, cut, keep)
    size = judge.size
    calibration = load_calibration(drafter, block_size=size)
    sets = judge.prompts(files, rows, seed)
    asked = [one for questions in sets.values() for one in questions]
    found = fitting.fit(judge.target, judge.drafter, asked)
    by_temperature: dict[str, Any] = {}
    with progress("evaluate", len(temperatures) * len(asked), shown=bar) as tell:
        for temperature in temperatures:
            bucket: Bucket = "greedy" if temperature == 0 else "sampled"
            fit = calibration.fit(bucket, rule)
            rows_of: dict[str, Any] = {}
            for name, questions in sets.items():
                texts = judge.texts(questions, temperature, rule, seed, tell)
                domain = {"domain": domain_of(files[name])}
                rows_of[name] = domain | _measured(texts, size, fit, thresholds)
                tell(note=f"T={temperature:g} {name} tau {rows_of[name]['tau']:.2f}")
            by_temperature[f"T={temperature:g}"] = _summary(rows_of)
    report = {
        "target": str(target),
        "drafter": str(drafter),
        "family": judge.drafter.config.family,
        "block_size": size,
        "fingerprints": {
            "target": fingerprint(target),
            "drafter": fingerprint(drafter, target=target),
        },
        "rule": rule,
        "top_k_cut": cut,
        "new_tokens": new_tokens,
        "seed": seed,
        "calibrated": calibration is not IDENTITY,
        "fit": {
            "said": str(found),
            "fits": found.fits,
            "accepted": found.accepted,
            "off_by": found.off_by,
        },
        "temperatures": by_temperature,
        "seconds": round(time.monotonic() - begun, 1),
    }
    if out is not None:
        write_json(out / "metrics.json", metrics.plain(report))
        draw(report, out)
    return report


def _measured(
    texts: Sequence[Text], size: int, fit: SlotFit | None, thresholds: Sequence[float]
) -> dict[str, Any]:
    """Figures of one data set at one temperature. ConfigError if it has no text."""
    if not texts:
        raise ConfigError(
            "data: the target ends every answer of a data set at once; there is no round to measure"
        )
    by_text = metrics.played(texts, fit)
    row = metrics.figures([made for rounds in by_text for made in rounds], size)
    row["tau_95"] = metrics.interval(by_text)
    once = [made for text, made in zip(texts, by_text, strict=True) if not metrics.loops(text)]
    row["texts"], row["loops"] = len(texts), len(texts) - len(once)
    row["tau_without_loops"] = metrics.figures([made for rounds in once for made in rounds], size)[
        "tau"
    ]
    row["confidence"] = metrics.confidence(texts, size, fit)
    if row["confidence"] is not None and thresholds:
        row["sweep"] = metrics.sweep(texts, size, thresholds, fit)
    return row


def _summary(rows_of: Mapping[str, Any]) -> dict[str, Any]:
    """The data sets, the plain means of each domain, and the plain mean of all data sets."""

    def means(names: Sequence[str]) -> dict[str, float]:
        return {
            key: _mean([rows_of[name][key] for name in names])
            for key in ("tau", "tau_without_loops", "verify_rate", "proposed")
        }

    domains: dict[str, list[str]] = {}
    for name, row in rows_of.items():
        domains.setdefault(row["domain"], []).append(name)
    return {
        "datasets": dict(rows_of),
        "domains": {domain: means(names) for domain, names in domains.items()},
        "mean": means(list(rows_of)),
    }


def table(report: Mapping[str, Any]) -> str:
    """The report as text: a line per temperature and data set, then domains and the overall mean.
    loops: answers that repeat a run of tokens, of all; without: tau without these."""
    lines = [
        f"{report['family']}, blocks of {report['block_size']}, rule {report['rule']}",
        f"greedy, on the first prompts: {report['fit']['said']}",
        f"{'':6}{'data':14}{'tau':>6}  {'95 %':13}{'rounds':>7}{'propose':>8}{'rate':>7}"
        f"{'loops':>8}{'without':>9}  accepted, given the slot before",
    ]
    for temperature, part in report["temperatures"].items():
        for name, row in part["datasets"].items():
            slots = " ".join(
                "  . " if math.isnan(share) else f"{share:.2f}" for share in row["conditional"]
            )
            low, high = row["tau_95"]
            lines.append(
                f"{temperature:6}{name:14}{row['tau']:6.2f}  "
                f"{low:5.2f}-{high:<7.2f}{row['rounds']:7}"
                f"{row['proposed']:8.2f}{row['verify_rate']:7.1%}"
                f"{row['loops']:5}/{row['texts']:<3}{row['tau_without_loops']:8.2f}  {slots}"
            )
        means = {f"{domain} (mean)": row for domain, row in part["domains"].items()} | {
            "all": part["mean"]
        }
        for name, row in means.items():
            lines.append(
                f"{temperature:6}{name:14}{row['tau']:6.2f}{'':22}"
                f"{row['proposed']:8.2f}{row['verify_rate']:7.1%}"
                f"{row['tau_without_loops']:17.2f}"
            )
        lines += _confidences(temperature, part["datasets"])
    return "\n".join(lines)


def _confidences(temperature: str, datasets: Mapping[str, Any]) -> list[str]:
    """A line per data set: mean calibration error, ranking, and the best threshold of the sweep."""
    lines = []
    for name, row in datasets.items():
        if row["confidence"] is None:
            continue
        told = [
            f"{kind} error {sum(of['ece']) / len(of['ece']):.1%}, AUC {_mean(of['auc']):.3f}"
            for kind, of in row["confidence"].items()
            if kind != "rounds"
        ]
        if best := thrift(row.get("sweep", [])):
            told.append(
                f"threshold {best['threshold']:g}: {best['saved']:.0%} fewer verified tokens "
                f"for {best['lost']:.1%} of tau"
            )
        lines.append(f"{temperature:6}{name:14}confidence: {'; '.join(told)}")
    return lines


def thrift(points: Sequence[Mapping[str, float]]) -> dict[str, float] | None:
    """The threshold that saves most verified tokens per committed one, for at most 5 % of tau."""
    if not points:
        return None
    full = points[0]  # the lowest threshold, which cuts least
    offers = [
        {
            "threshold": point["threshold"],
            "saved": 1.0 - point["verified_per_committed"] / full["verified_per_committed"],
            "lost": 1.0 - point["tau"] / full["tau"],
        }
        for point in points
    ]
    return max(
        (offer for offer in offers if offer["lost"] <= 0.05), key=lambda offer: offer["saved"]
    )


def _mean(values: Sequence[float]) -> float:
    good = [value for value in values if not math.isnan(value)]
    return sum(good) / len(good) if good else math.nan


def draw(report: Mapping[str, Any], folder: Path) -> None:
    """Writes `acceptance.png` and, where there is confidence, `sweep.png`."""
    _acceptance(report, folder / "acceptance.png")
    swept = {
        t: p
        for t, p in report["temperatures"].items()
        if any("sweep" in r for r in p["datasets"].values())
    }
    if swept:
        _sweep(swept, folder / "sweep.png")


def _acceptance(report: Mapping[str, Any], path: Path) -> None:
    figure, axes = plots.panels(len(report["temperatures"]), (4.6, 3.6))
    for pane, (temperature, part) in zip(axes, report["temperatures"].items(), strict=True):
        for name, row in part["datasets"].items():
            points = [
                (k + 1, share)
                for k, share in enumerate(row["conditional"])
                if not math.isnan(share)
            ]
            pane.plot(*zip(*points, strict=True), marker=".", label=f"{name}, tau {row['tau']:.2f}")
        pane.set(title=temperature, xlabel="slot", ylabel="accepted, given the slot before")
    plots.write(figure, path)


def _sweep(swept: Mapping[str, Any], path: Path) -> None:
    figure, axes = plots.panels(2 * len(swept), (4.2, 3.6))
    for number, (temperature, part) in enumerate(swept.items()):
        left, right = axes[2 * number : 2 * number + 2]
        for name, row in part["datasets"].items():
            if not (points := row.get("sweep")):
                continue  # no whole block of it was judged
            at = [point["threshold"] for point in points]
            (line,) = left.plot(
                at, [point["tau"] for point in points], marker=".", label=f"{name}: tau"
            )
            verified = [point["verified"] for point in points]
            left.plot(
                at, verified, linestyle="--", color=line.get_color(), label=f"{name}: verified"
            )
            right.plot(
                [point["verified_per_committed"] for point in points],
                [point["tau"] / points[0]["tau"] for point in points],
                marker=".",
                label=name,
            )
        left.set(title=temperature, xlabel="threshold", ylabel="tokens a round")
        right.axhline(0.95, color="grey", linewidth=0.7)
        right.set(xlabel="verified tokens per committed token", ylabel="share of tau kept")
    plots.write(figure, path)
