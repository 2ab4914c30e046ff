"""Learning rate of a run: pure numbers."""

import math


def cosine(step: int, steps: int, *, warmup: float) -> float:
    """Share of the peak learning rate of the published recipe: linear over the first `warmup` share of the steps (step
    t of W: (t + 1) / W), then a cosine to 0 over the rest."""
    rising = round(warmup * steps)
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def rate(step: int, steps: int, *, warmup: int, decay_from: float) -> float:
    """Share of the peak learning rate: linear warm-up, level, then linear to 0 from `decay_from` of the run.

    The level part does not depend on the length of the run: a run resumed with another length stays consistent.
    """
    rising = min(1.0, (step + 1) / max(1, warmup))
    start = decay_from * steps
    falling = 1.0 if step < start else (steps - step) / max(1.0, steps - start)
    return rising * falling
