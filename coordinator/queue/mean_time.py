"""A running estimate of durations: one stall must not move it far. Pure."""

from __future__ import annotations

from dataclasses import dataclass

CLIP = 3.0  # an observation counts as at most this many times what was expected


@dataclass(slots=True)
class MeanTime:
    """Exponential mean of a duration in seconds; 0 until the first observation."""

    seconds: float = 0.0
    weight: float = 0.05
    seen: bool = False

    def observe(self, seconds: float) -> None:
        sane = max(seconds, 0.0)
        if self.seen and self.seconds > 0.0:
            sane = min(sane, CLIP * self.seconds)
        self.seconds += (self.weight if self.seen else 1.0) * (sane - self.seconds)
        self.seen = True
