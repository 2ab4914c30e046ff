"""What a calibration amounts to: figures of each fit on rounds it was not fitted on, and the table of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dspark.model.calibration import SlotFit
from dspark.training import reliability
from dspark.training.held_rounds import JudgedRounds

FEW = 5_000  # rounds of a half below which a figure is mostly noise


def figures(fit: SlotFit, published: SlotFit, fitted: JudgedRounds, measured: JudgedRounds) -> dict[str, Any]:
    """Before and after `fit`, by slot, and what the `published` one, of temperatures alone, would have left."""
    was, plain, now = (
        reliability.by_slot(reliability.survival(measured.logits, how), measured.accepted)
        for how in (None, published, fit)
    )
    return {
        "rounds_fitted": len(fitted.accepted),
        "rounds_measured": len(measured.accepted),
        "few_rounds": min(len(fitted.accepted), len(measured.accepted)) < FEW,
        "mean_ece_before": _mean(was["ece"]),
        "mean_ece_temperatures_alone": _mean(plain["ece"]),
        "mean_ece_after": _mean(now["ece"]),
        "auc_each_before": reliability.conditional_ranking(measured.logits, measured.accepted),
        "auc_each_after": reliability.conditional_ranking(fit.logits(measured.logits), measured.accepted),
        "before": was,
        "after": now,
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def table(report: Mapping[str, Any]) -> str:
    """The report for people: one block per rule and bucket, one line per slot."""
    lines = []
    for fit in report["fits"]:
        lines.append(
            f"{fit['rule']} {fit['bucket']}: mean error of survival {fit['mean_ece_before']:.2%} -> "
            f"{fit['mean_ece_after']:.2%} (temperatures alone {fit['mean_ece_temperatures_alone']:.2%}) "
            f"on {fit['rounds_measured']:,} rounds, fitted on {fit['rounds_fitted']:,}"
            + (" (few: mostly noise)" if fit["few_rounds"] else "")
        )
        lines.append(
            f"{'slot':>6}{'T':>8}{'offset':>8}{'error':>16}{'AUC survival':>18}{'AUC slot':>10}{'accepted':>10}"
        )
        was, now = fit["before"], fit["after"]
        offsets = fit["offsets"] or [0.0] * len(fit["temperatures"])
        for slot, (temperature, offset) in enumerate(zip(fit["temperatures"], offsets, strict=True)):
            lines.append(
                f"{slot + 1:6}{temperature:8.2f}{offset:8.2f}{was['ece'][slot]:8.2%}{now['ece'][slot]:8.2%}"
                f"{was['auc'][slot]:9.3f}{now['auc'][slot]:9.3f}{fit['auc_each_after'][slot]:10.3f}"
                f"{now['mean_accepted'][slot]:10.3f}"
            )
    return "\n".join([*lines, f"written: {report['file']}"])
