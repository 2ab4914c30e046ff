"""Figures of rounds, by the papers' definitions. Pure functions.

tau is emitted tokens over rounds, pooled over all texts: the target's own token counts, the
prefill's does not. `survival[j]` is the share of the rounds that drafted more than j slots which
accepted more than j; `conditional[j]` is survival[j] over survival[j - 1]. `verify_rate` is emitted
tokens over verified ones, the anchor's place included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dspark.model.calibration import SlotFit, sigmoid
from dspark.training import reliability
from dspark.training.judged import Text, whole_blocks
from dspark.training.reliability import Floats
from dspark.training.rounds import EvaluatedRound

DRAWS, RUN = 500, 8


def figures(rounds: Sequence[EvaluatedRound], size: int) -> dict[str, Any]:
    """Figures of rounds of any texts; `size` is the drafter's block size."""
    count = len(rounds)
    emitted, drafted = sum(made.emitted for made in rounds), sum(made.drafted for made in rounds)
    survival, conditional, before = [], [], 1.0
    for slot in range(size):
        reached = [made for made in rounds if made.drafted > slot]
        alive = (
            sum(made.accepted > slot for made in reached) / len(reached) if reached else math.nan
        )
        survival.append(alive)
        conditional.append(alive / before if before else math.nan)
        before = alive
    return {
        "rounds": count,
        "tau": emitted / count if count else math.nan,
        "proposed": drafted / count + 1.0 if count else math.nan,
        "verify_rate": emitted / (drafted + count) if count else math.nan,
        "survival": survival,
        "conditional": conditional,
    }


def interval(by_text: Sequence[Sequence[EvaluatedRound]]) -> tuple[float, float]:
    """95 % interval of tau, by a bootstrap of texts: rounds of one text are not independent."""
    emitted = np.array([sum(made.emitted for made in rounds) for rounds in by_text])
    counts = np.array([len(rounds) for rounds in by_text])
    if not counts.sum():
        return math.nan, math.nan
    picked = np.random.default_rng(0).integers(len(counts), size=(DRAWS, len(counts)))
    taus = emitted[picked].sum(axis=1) / np.maximum(counts[picked].sum(axis=1), 1)
    low, high = np.quantile(taus, (0.025, 0.975))
    return float(low), float(high)


def above(confidence: Floats, threshold: float) -> list[int]:
    """confidence [A, k] -> number of slots before the first that is strictly below the threshold,
    [A]."""
    lengths: list[int] = np.cumprod(~(confidence < threshold), axis=1).sum(axis=1).tolist()
    return lengths


def played(
    texts: Sequence[Text], fit: SlotFit | None, threshold: float = 0.0
) -> list[list[EvaluatedRound]]:
    """Rounds of every text, blocks cut at the first confidence below the threshold (0: whole),
    calibrated by `fit` or raw (None)."""
    made = []
    for text in texts:
        told = sigmoid(text.confidence if fit is None else fit.logits(text.confidence))
        made.append(text.play(above(told, threshold)))
    return made


def confidence(texts: Sequence[Text], size: int, fit: SlotFit | None) -> dict[str, Any] | None:
    """Quality of the confidence by slot, raw and calibrated; None if no whole block was judged."""
    logits, accepted = whole_blocks(texts, size)
    if not len(accepted):
        return None
    report = {"raw": reliability.by_slot(reliability.survival(logits), accepted)}
    if fit is not None:
        report["calibrated"] = reliability.by_slot(reliability.survival(logits, fit), accepted)
    return {"rounds": len(accepted), **report}


def loops(text: Text) -> bool:
    """Whether an answer repeats a run of `RUN` tokens: repeated text is easy to draft."""
    start = len(text.answer.prompt)
    ids = text.answer.ids[0, start : start + text.answer.anchors].tolist()
    runs = [tuple(ids[n : n + RUN]) for n in range(len(ids) - RUN + 1)]
    return len(set(runs)) < len(runs)


def sweep(
    texts: Sequence[Text], size: int, thresholds: Sequence[float], fit: SlotFit | None
) -> list[dict[str, float]]:
    """tau and verified tokens at every threshold; the same texts and drafts throughout."""
    points = []
    for threshold in thresholds:
        rounds = [r for one in played(texts, fit, threshold) for r in one]
        all_of = figures(rounds, size)
        rate = all_of["verify_rate"]
        points.append(
            {
                "threshold": threshold,
                "tau": all_of["tau"],
                "verified": all_of["proposed"],
                "verified_per_committed": 1.0 / rate if rate else math.nan,
                "verify_rate": rate,
            }
        )
    return points


def plain(value: Any) -> Any:
    """The value with None in place of NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value
