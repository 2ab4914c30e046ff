"""Fits the confidence temperatures on held-out rounds and writes `calibration.json` beside the weights.

One fit per acceptance rule and bucket of requests, on drafts cut to their largest few, as when serving. Greedy requests
are matched alike under every rule, so they are measured once. Every second prompt is fitted on, and the other half says
how good the fit is: nothing is measured on a text that was fitted on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dspark.errors import ConfigError
from dspark.model.calibration import FILE_NAME, RULES, Bucket, Buckets, Calibration, RuleName, calibration_to_json
from dspark.model.checkpoint import fingerprint, load_drafter, load_target
from dspark.model.location import locate
from training import record, reliability, sts
from training.asked import questions
from training.disk import write_whole
from training.held_rounds import Rounds, Source
from training.rounds import TOP_K_CUT

TEMPERATURES = (0.7, 1.0)
NEW_TOKENS = 128
FEW = 5_000  # rounds of a half below which a figure is mostly noise


def calibrate(
    target: Path,
    drafter: Path,
    prompts: Sequence[Path],
    *,
    rules: Sequence[RuleName] = RULES,
    temperatures: Sequence[float] = TEMPERATURES,
    new_tokens: int = NEW_TOKENS,
    cut: int | None = TOP_K_CUT,
    rows: int = 0,
    seed: int = 0,
    out: Path | None = None,
    plots: Path | None = None,
    keep: Path | None = None,
    bar: bool = True,
) -> dict[str, Any]:
    """Fits and measures every rule and bucket; writes the temperatures to `out` (the drafter's folder).

    `plots` takes reliability diagrams before and after; `keep` keeps the rounds, so that a run that was stopped goes on
    where it was. Returns what `dspark calibrate --json` prints. ConfigError for a drafter without a confidence head:
    there is nothing to calibrate.
    """
    begun = time.monotonic()
    _check_names(prompts)
    made, folder = load_drafter(drafter, target=target), out or locate(drafter)
    if not made.config.enable_confidence_head:
        raise ConfigError(f"drafter: {drafter} ({made.config.family}) has no confidence head to calibrate")
    made.requires_grad_(False).serve()
    loaded = load_target(target)
    asked = {path.stem: questions(path, loaded, rows=rows, seed=seed) for path in prompts}
    if any(len(rows_of) < 2 for rows_of in asked.values()):
        raise ConfigError("prompts: two rows at least of every file, one to fit on and one to measure on")
    named = f"{fingerprint(target)} {fingerprint(drafter)} {cut} {new_tokens} {seed} {rows}"
    source = Source(loaded, made, asked, seed=seed, new_tokens=new_tokens, cut=cut, keep=keep, named=named)
    jobs: list[tuple[RuleName, Bucket, tuple[float, ...]]] = [("token", "greedy", (0.0,))]
    jobs += [(rule, "sampled", tuple(temperatures)) for rule in rules]
    found: dict[tuple[RuleName, Bucket], dict[str, Any]] = {}
    progress = record.progress()
    progress.disable = not bar
    with progress:
        total = sum(map(len, asked.values())) * sum(len(job[2]) for job in jobs)
        task = progress.add_task("calibrate", total=total, note="")
        for rule, bucket, drawn_at in jobs:
            fitted, measured = (source.half(n, rule, drawn_at, lambda n: progress.advance(task, n)) for n in (0, 1))
            found[rule, bucket] = _fit(rule, bucket, fitted, measured, plots)
            progress.update(task, note=f"{rule} {bucket}: error {found[rule, bucket]['mean_ece_after']:.2%}")
    _write(folder / FILE_NAME, rules, found, cut)
    return {
        "target": str(target),
        "drafter": str(drafter),
        "top_k_cut": cut,
        "prompts": {name: len(rows_of) for name, rows_of in asked.items()},
        "new_tokens": new_tokens,
        "temperatures": list(temperatures),
        "seed": seed,
        "seconds": round(time.monotonic() - begun, 1),
        "fits": list(found.values()),
        "file": str(folder / FILE_NAME),
    }


def _check_names(prompts: Sequence[Path]) -> None:
    """Rounds go by the stem of their file."""
    known: dict[str, Path] = {}
    for path in prompts:
        if path.stem in known:
            raise ConfigError(f"prompts: {known[path.stem]} and {path} have one name; rename one of them")
        known[path.stem] = path


def _fit(rule: RuleName, bucket: Bucket, fitted: Rounds, measured: Rounds, plots: Path | None) -> dict[str, Any]:
    """Temperatures from one half, figures from the other."""
    temperatures = sts.fit(*fitted)
    size = len(temperatures)
    before = reliability.survival(measured.logits)
    after = reliability.survival(measured.logits, temperatures)
    was, now = (reliability.by_slot(p, measured.accepted) for p in (before, after))
    if plots is not None:
        plots.mkdir(parents=True, exist_ok=True)
        name = "greedy" if bucket == "greedy" else f"{rule}-{bucket}"
        panes = {"before": before, "after": after}
        reliability.diagram(panes, measured.accepted, plots / f"reliability-{name}.png", title=name)
    return {
        "rule": "all" if bucket == "greedy" else rule,
        "bucket": bucket,
        "temperatures": [round(t, 4) for t in temperatures],
        "rounds_fitted": len(fitted.accepted),
        "rounds_measured": len(measured.accepted),
        "few_rounds": min(len(fitted.accepted), len(measured.accepted)) < FEW,
        "mean_ece_before": sum(was["ece"]) / size,
        "mean_ece_after": sum(now["ece"]) / size,
        "auc_each_before": reliability.conditional_ranking(measured.logits, measured.accepted),
        "auc_each_after": reliability.conditional_ranking(
            measured.logits / np.asarray(temperatures), measured.accepted
        ),
        "before": was,
        "after": now,
    }


def _write(
    path: Path, rules: Sequence[RuleName], found: Mapping[tuple[RuleName, Bucket], Mapping[str, Any]], cut: int | None
) -> None:
    greedy = tuple(found["token", "greedy"]["temperatures"])
    fits: dict[RuleName, Buckets] = {
        rule: {"greedy": greedy, "sampled": tuple(found[rule, "sampled"]["temperatures"])} for rule in rules
    }
    write_whole(path, json.dumps(calibration_to_json(Calibration(cut, fits)), indent=2) + "\n")


def table(report: Mapping[str, Any]) -> str:
    """The report for people: one block per rule and bucket, one line per slot."""
    lines = []
    for fit in report["fits"]:
        lines.append(
            f"{fit['rule']} {fit['bucket']}: mean error of survival {fit['mean_ece_before']:.2%} -> "
            f"{fit['mean_ece_after']:.2%} on {fit['rounds_measured']:,} rounds, fitted on {fit['rounds_fitted']:,}"
            + (" (few: mostly noise)" if fit["few_rounds"] else "")
        )
        lines.append(f"{'slot':>6}{'T':>8}{'error':>16}{'AUC survival':>18}{'AUC slot':>10}{'accepted':>10}")
        for slot, temperature in enumerate(fit["temperatures"]):
            was, now = fit["before"], fit["after"]
            lines.append(
                f"{slot + 1:6}{temperature:8.2f}{was['ece'][slot]:8.2%}{now['ece'][slot]:8.2%}"
                f"{was['auc'][slot]:9.3f}{now['auc'][slot]:9.3f}{fit['auc_each_after'][slot]:10.3f}"
                f"{now['mean_accepted'][slot]:10.3f}"
            )
    return "\n".join([*lines, f"written: {report['file']}"])
