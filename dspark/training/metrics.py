"""What rounds amount to, by the papers' definitions. Pure numbers.

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

from dspark.model.calibration import SlotFit
from dspark.training import reliability
from dspark.training.judged import Text, whole_blocks
from dspark.training.reliability import Floats
from dspark.training.rounds import Played


def figures(rounds: Sequence[Played], size: int) -> dict[str, Any]:
    """Of rounds of any texts; `size` is the drafter's block."""
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


def interval(
    by_text: Sequence[Sequence[Played]], seed: int = 0, draws: int = 500
) -> tuple[float, float]:
    """95 % of tau over texts drawn anew: rounds of one text are not independent."""
    emitted = np.array([sum(made.emitted for made in rounds) for rounds in by_text])
    counts = np.array([len(rounds) for rounds in by_text])
    if not counts.sum():
        return math.nan, math.nan
    picked = np.random.default_rng(seed).integers(len(counts), size=(draws, len(counts)))
    taus = emitted[picked].sum(axis=1) / np.maximum(counts[picked].sum(axis=1), 1)
    low, high = np.quantile(taus, (0.025, 0.975))
    return float(low), float(high)


def above(confidence: Floats, threshold: float) -> list[int]:
    """Of blocks [A, k] the slots before the first whose own confidence is strictly below the
    threshold [A]."""
    lengths: list[int] = np.cumprod(~(confidence < threshold), axis=1).sum(axis=1).tolist()
    return lengths


def played(
    texts: Sequence[Text], new_tokens: int, fit: SlotFit | None, threshold: float = 0.0
) -> list[list[Played]]:
    """Rounds of every text, blocks cut where confidence, calibrated by `fit` or not, is below a
    threshold; 0: whole."""
    made = []
    for text in texts:
        told = reliability.sigmoid(text.confidence if fit is None else fit.logits(text.confidence))
        made.append(text.play(above(told, threshold), new_tokens))
    return made


def confidence(
    texts: Sequence[Text], size: int, new_tokens: int, fit: SlotFit | None
) -> dict[str, Any] | None:
    """How good the confidence is, raw and calibrated, by slot; None where no block was verified
    whole."""
    logits, accepted = whole_blocks(texts, size, new_tokens)
    if not len(accepted):
        return None
    report = {"raw": reliability.by_slot(reliability.survival(logits), accepted)}
    if fit is not None:
        report["calibrated"] = reliability.by_slot(reliability.survival(logits, fit), accepted)
    return {"rounds": len(accepted), **report}


def loops(text: Text, new_tokens: int, length: int = 8) -> bool:
    """Whether a run of so many tokens comes twice in an answer: what repeats itself is easy to
    draft."""
    start = len(text.answer.question.ids)
    ids = text.answer.ids[0, start : start + text.answer.anchors].tolist()[:new_tokens]
    runs = [tuple(ids[n : n + length]) for n in range(len(ids) - length + 1)]
    return len(set(runs)) < len(runs)


def sweep(
    texts: Sequence[Text],
    size: int,
    new_tokens: int,
    thresholds: Sequence[float],
    fit: SlotFit | None,
) -> list[dict[str, float]]:
    """tau and verified tokens at every threshold; the same texts and drafts throughout."""
    points = []
    for threshold in thresholds:
        rounds = [r for one in played(texts, new_tokens, fit, threshold) for r in one]
        all_of = figures(rounds, size)
        points.append(
            {
                "threshold": threshold,
                "tau": all_of["tau"],
                "verified": all_of["proposed"],
                "verified_per_committed": 1.0 / all_of["verify_rate"]
                if all_of["verify_rate"]
                else math.nan,
                "verify_rate": all_of["verify_rate"],
            }
        )
    return points


def plain(value: Any) -> Any:
    """The same with null where a figure does not exist: JSON has no NaN."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value
