"""What a threshold on confidence saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dspark import plots
from dspark.types import Rule
from guide.pair import Tour
from training import metrics
from training.asked import answers, questions
from training.held_out import files
from training.judged import judged

THRESHOLDS = [n / 10 for n in range(10)]
SHOWN = 3  # which of them the text tells of


def threshold_sweep(tour: Tour) -> str:
    """Fewer verified tokens for little tau."""
    figure, (axes,) = plots.panels(1, (6, 3.6))
    told = []
    for path in files("evaluate"):
        points = _points(tour, path)
        verified, tau = ([point[name] for point in points] for name in ("verified_per_committed", "tau"))
        axes.plot(verified, tau, marker=".", label=path.stem)
        saved = 1 - verified[SHOWN] / verified[0]
        told.append(f"{path.stem} {tau[0]:.1f} ({tau[SHOWN]:.1f}, {saved:.0%} saved)")
    axes.set_xlabel("verified tokens per committed token")
    axes.set_ylabel("tau")
    plot = tour.save(figure, "sweep")
    return f"""## 7. What confidence is good for

Verifying a token that will be rejected is work for nothing, and under load it is work that another request could have
used. Cut a block before the first slot whose confidence is below a threshold, and sweep the threshold from
{THRESHOLDS[0]:g} (right end of each line) to {THRESHOLDS[-1]:g} (left end):

{plot}

tau of whole blocks and, in brackets, at a threshold of {THRESHOLDS[SHOWN]:g} with what that saves of the tokens
verified per token that came out: {"; ".join(told)}. On text that is hard to guess most of a block can go unverified
for nothing. A scheduler does better than a threshold: it gives every request what its survival is worth at the
present load (`coordinator/scheduling/prefix_scheduler.py`). Cutting is lossless as long as whether a slot is verified
does not depend on the token in it."""


def _points(tour: Tour, path: Path) -> list[dict[str, Any]]:
    """A domain's rounds, played at every threshold on the very same texts and drafts."""
    rule = Rule.TOKEN
    asked = questions(path, tour.target, rows=tour.rows)
    drawn = answers(tour.target, asked, temperature=1.0, rule=rule, seed=0, new_tokens=tour.tokens, room=tour.slots + 1)
    texts = list(judged(tour.target, tour.drafter, drawn, temperature=1.0, rule=rule, seed=1, cut=64))
    return metrics.sweep(texts, tour.slots, tour.tokens, THRESHOLDS, tour.calibration.fit("sampled", "token"))
