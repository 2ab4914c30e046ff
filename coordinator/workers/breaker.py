"""When a worker that is lost again and again is tried again. Pure.

Losing a worker costs its sequences a prefill, and a request survives only so many losses. So one that was lost often
of late is held off, longer each time, and is trusted anew once it has held for a while. Never the last of its role:
a doubtful worker is better than none.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CircuitBreaker:
    """losses: within `window_s` that open the breaker; 0 never does. pause_s: how long, doubled up to longest_s."""

    losses: int = 4
    window_s: float = 60.0
    pause_s: float = 5.0
    longest_s: float = 60.0


class Breaker:
    """Of one worker."""

    def __init__(self, terms: CircuitBreaker) -> None:
        self._terms = terms
        self._losses: deque[float] = deque()
        self._pause_s = terms.pause_s
        self._until = 0.0

    def lost(self, now: float) -> bool:
        """It was lost; returns whether that opened the breaker."""
        terms = self._terms
        while self._losses and self._losses[0] < now - terms.window_s:
            self._losses.popleft()
        if not self._losses:
            self._pause_s = terms.pause_s
        self._losses.append(now)
        if not terms.losses or len(self._losses) < terms.losses:
            return False
        self._until = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, terms.longest_s)
        return True

    def left_s(self, now: float) -> float:
        """Seconds for which it is held off."""
        return max(self._until - now, 0.0)
