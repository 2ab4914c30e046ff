"""Fits the calibration of confidence on held-out rounds and writes `calibration.json` beside the
weights.

There is one fit per acceptance rule and bucket of requests, on drafts cut to their likeliest
entries, as when serving. Greedy requests are accepted alike under every rule, so they are measured
once. Every second prompt is fitted on and the others measure the fit: no text is used for both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from dspark.errors import ConfigError
from dspark.model.calibration import (
    FILE_NAME,
    RULES,
    Bucket,
    Buckets,
    Calibration,
    RuleName,
    SlotFit,
    calibration_to_json,
)
from dspark.progress import progress
from dspark.training import reliability
from dspark.training.asked import Prompt, by_name
from dspark.training.disk import check_folder, write_json
from dspark.training.judged import Judge, JudgedRounds, Text, whole_blocks
from dspark.training.rounds import TOP_K_CUT

TEMPERATURES = (0.7, 1.0)
NEW_TOKENS = 128
FEW = 5_000  # with fewer rounds in a half, its figures are mostly noise


def calibrate(
    target: Path,
    drafter: Path,
    prompts: Sequence[Path],
    *,
    rules: Sequence[RuleName] = RULES,
    temperatures: Sequence[float] = TEMPERATURES,
    new_tokens: int = NEW_TOKENS,
    cut: int | None = TOP_K_CUT,
    offsets: bool = True,
    rows: int = 0,
    seed: int = 0,
    also_greedy: Sequence[Path] = (),
    out: Path | None = None,
    plots: Path | None = None,
    keep: Path | None = None,
    bar: bool = True,
) -> dict[str, Any]:
    """Fits and measures every rule and bucket; writes the fits to `out` (the drafter's folder).

    Without `offsets` only temperatures are written, as published; their error is reported in any
    case. `also_greedy` are prompts for greedy requests only: an answer has fewer rounds there, and
    it is always the same. `plots` is a folder for reliability diagrams before and after, `keep` one
    that keeps the target's answers for the next run. Returns what `dspark calibrate --json` prints.
    """
    begun = time.monotonic()
    files = by_name([*prompts, *also_greedy])
    folder = out or drafter
    for key, place in (("out", folder), ("plots", plots), ("keep", keep)):
        check_folder(key, place)
    judge = Judge.load(target, drafter, new_tokens, cut, keep)
    asked = judge.prompts(files, rows, seed)
    if any(len(rows_of) < 2 for rows_of in asked.values()):
        raise ConfigError(
            "prompts: two rows at least of every file, one to fit on and one to measure on"
        )
    sampled = [path.stem for path in prompts]
    jobs = [FitJob("token", "greedy", (0.0,), list(asked))]
    jobs += [FitJob(rule, "sampled", temperatures, sampled) for rule in rules]
    fits: dict[tuple[RuleName, Bucket], SlotFit] = {}
    told: list[dict[str, Any]] = []
    total = sum(len(asked[name]) * len(job.temperatures) for job in jobs for name in job.names)
    with (
        TemporaryDirectory(prefix="dspark-answers-") as scratch,
        progress("calibrate", total, shown=bar) as tell,
    ):
        # Both ratio rules are judged on the same answers: unlike `coupled`, neither fixes the noise
        # that answers are drawn with.
        judge = replace(judge, keep=judge.keep or Path(scratch))
        for job in jobs:
            fitted, measured = (_half(judge, asked, job, n, seed, tell) for n in (0, 1))
            fits[job.rule, job.bucket], figures = _fit(job, fitted, measured, offsets, plots)
            tell(note=f"{job.rule} {job.bucket}: error {figures['mean_ece_after']:.2%}")
            told.append(figures)
    kept: dict[RuleName, Buckets] = {
        rule: {"greedy": fits["token", "greedy"], "sampled": fits[rule, "sampled"]}
        for rule in rules
    }
    write_json(folder / FILE_NAME, calibration_to_json(Calibration(cut, kept)))
    return {
        "target": str(target),
        "drafter": str(drafter),
        "top_k_cut": cut,
        "prompts": {name: len(rows_of) for name, rows_of in asked.items()},
        "new_tokens": new_tokens,
        "temperatures": list(temperatures),
        "seed": seed,
        "seconds": round(time.monotonic() - begun, 1),
        "fits": told,
        "file": str(folder / FILE_NAME),
    }


class FitJob(NamedTuple):
    """One fit to make, and the requests it is made from."""

    rule: RuleName
    bucket: Bucket
    temperatures: Sequence[float]  # of the requests
    names: Sequence[str]  # of the files of prompts


def _half(
    judge: Judge,
    asked: Mapping[str, Sequence[Prompt]],
    job: FitJob,
    half: int,
    seed: int,
    tell: Callable[..., object],
) -> JudgedRounds:
    """The rounds of every second prompt, from the `half`-th on, at all temperatures."""
    texts: list[Text] = []
    for temperature in job.temperatures:
        # every half and temperature has a seed of its own
        own = (2 * (seed + 1009 * round(1000 * temperature)) + half) % (1 << 63)
        for name in job.names:
            texts += judge.texts(asked[name][half::2], temperature, job.rule, own, tell)
    found = whole_blocks(texts, judge.size)
    if not len(found.accepted):
        raise ConfigError("prompts: no round was played; the target ends every answer at once")
    return found


def _fit(
    job: FitJob, fitted: JudgedRounds, measured: JudgedRounds, offsets: bool, plots: Path | None
) -> tuple[SlotFit, dict[str, Any]]:
    """Fits one half, rounded as it is written, and measures on the other half: without a fit, with
    temperatures alone as published, and with this fit."""
    published = reliability.temperatures(*fitted)
    exact = reliability.with_offsets(*fitted) if offsets else published
    fit = SlotFit(
        *(
            tuple(round(value, 4) for value in column)
            for column in (exact.temperatures, exact.offsets)
        )
    )
    if plots is not None:
        name = "greedy" if job.bucket == "greedy" else f"{job.rule}-{job.bucket}"
        panes = {
            "before": reliability.survival(measured.logits),
            "after": reliability.survival(measured.logits, fit),
        }
        reliability.diagram(panes, measured.accepted, plots / f"reliability-{name}.png", title=name)
    was, plain, now = (
        reliability.by_slot(reliability.survival(measured.logits, how), measured.accepted)
        for how in (None, published, fit)
    )
    return fit, {
        "rule": "all" if job.bucket == "greedy" else job.rule,
        "bucket": job.bucket,
        "temperatures": list(fit.temperatures),
        "offsets": list(fit.offsets),
        "rounds_fitted": len(fitted.accepted),
        "rounds_measured": len(measured.accepted),
        "few_rounds": min(len(fitted.accepted), len(measured.accepted)) < FEW,
        "mean_ece_before": fmean(was["ece"]),
        "mean_ece_temperatures_alone": fmean(plain["ece"]),
        "mean_ece_after": fmean(now["ece"]),
        # no fit changes it
        "auc_each": reliability.conditional_ranking(measured.logits, measured.accepted),
        "before": was,
        "after": now,
    }


def table(report: Mapping[str, Any]) -> str:
    """The report as text: one block per rule and bucket, one line per slot."""
    lines = []
    for fit in report["fits"]:
        lines.append(
            f"{fit['rule']} {fit['bucket']}: mean error of survival {fit['mean_ece_before']:.2%} "
            f"-> {fit['mean_ece_after']:.2%} (temperatures alone "
            f"{fit['mean_ece_temperatures_alone']:.2%}) "
            f"on {fit['rounds_measured']:,} rounds, fitted on {fit['rounds_fitted']:,}"
            + (" (few: mostly noise)" if fit["few_rounds"] else "")
        )
        lines.append(
            f"{'slot':>6}{'T':>8}{'offset':>8}{'error':>16}"
            f"{'AUC survival':>18}{'AUC slot':>10}{'accepted':>10}"
        )
        was, now = fit["before"], fit["after"]
        offsets = fit["offsets"] or [0.0] * len(fit["temperatures"])
        for slot, (temperature, offset) in enumerate(
            zip(fit["temperatures"], offsets, strict=True)
        ):
            lines.append(
                f"{slot + 1:6}{temperature:8.2f}{offset:8.2f}"
                f"{was['ece'][slot]:8.2%}{now['ece'][slot]:8.2%}"
                f"{was['auc'][slot]:9.3f}{now['auc'][slot]:9.3f}{fit['auc_each'][slot]:10.3f}"
                f"{now['mean_accepted'][slot]:10.3f}"
            )
    return "\n".join([*lines, f"written: {report['file']}"])
