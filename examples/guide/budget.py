"""What a threshold on confidence saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dspark import plots
from dspark.training import metrics
from dspark.training.asked import questions
from dspark.training.judged import Judge
from guide.pair import QUESTIONS, Tour

THRESHOLDS = [n / 10 for n in range(10)]
SHOWN = 3  # which of them the text tells of


def threshold_sweep(tour: Tour) -> str:
    """Fewer verified tokens for little tau."""
    figure, (axes,) = plots.panels(1, (6, 3.6))
    points = _points(tour, QUESTIONS)
    verified, tau = (
        [point[name] for point in points] for name in ("verified_per_committed", "tau")
    )
    axes.plot(verified, tau, marker=".", label=QUESTIONS.stem)
    saved = 1 - verified[SHOWN] / verified[0]
    axes.set_xlabel("verified tokens per committed token")
    axes.set_ylabel("tau")
    plot = tour.save(figure, "sweep")
    return f"""## 7. What confidence is good for

Verifying a token that will be rejected is work for nothing, and under load it is work that another
request could have used. Cut a block before the first slot whose confidence is below a threshold,
and sweep the threshold from {THRESHOLDS[0]:g} (right end of the line) to {THRESHOLDS[-1]:g} (left
end):

{plot}

tau of whole blocks is {tau[0]:.2f}. At a threshold of {THRESHOLDS[SHOWN]:g} it is {tau[SHOWN]:.2f},
and {saved:.0%} of the tokens verified per token that came out are saved: where text is hard to
guess, most of a block can go unverified for next to nothing. A scheduler does better than a
threshold: it gives every request what its survival is worth at the present load
(`coordinator/planning/planner.py`). Cutting is lossless as long as whether a slot is verified does
not depend on the token in it."""


def _points(tour: Tour, path: Path) -> list[dict[str, Any]]:
    """The rounds, played at every threshold on the very same texts and drafts."""
    judge = Judge(tour.target, tour.drafter, tour.tokens, cut=64)
    asked = questions(path, tour.target, rows=tour.rows)
    texts = judge.texts(asked, 1.0, "token", seed=0)
    return metrics.sweep(texts, tour.slots, THRESHOLDS, tour.calibration.fit("sampled", "token"))
