"""When a worker that is lost again and again is tried again. Pure.

Losing a worker costs its sequences a prefill, and a request survives only so many losses. So one
that was lost often of late is held off, longer each time, and is trusted anew once it has held for
a while. Never the last of its role: a doubtful worker is better than none.
"""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0  # within which losses count together
PAUSE_S, LONGEST_S = 5.0, 60.0  # for which it is held off at first, doubled up to the other


class CircuitBreaker:
    """Of one worker. losses: that open it; 0 never does."""

    def __init__(self, losses: int) -> None:
        self._limit, self._losses = losses, deque[float]()
        self._pause_s, self._until = PAUSE_S, 0.0

    def lost(self, now: float) -> bool:
        """It was lost; returns whether that opened the breaker."""
        while self._losses and self._losses[0] < now - WINDOW_S:
            self._losses.popleft()
        if not self._losses:
            self._pause_s = PAUSE_S
        self._losses.append(now)
        if not self._limit or len(self._losses) < self._limit:
            return False
        self._until = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_S)
        return True

    def left_s(self, now: float) -> float:
        """Seconds for which it is held off."""
        return max(self._until - now, 0.0)
