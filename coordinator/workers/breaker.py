"""Circuit breaker: decides when a worker that is lost repeatedly is tried again. Pure.

Losing a worker costs its sequences a prefill, and a request survives only so many losses. So a
worker that was lost often within a minute is held off, longer each time; a minute without a loss
resets this. The last worker of a role is never held off: an unreliable worker is better than none.
"""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0  # within which losses count together
PAUSE_S, LONGEST_S = 5.0, 60.0  # first pause, doubled each time up to the longest


class CircuitBreaker:
    """The breaker of one worker. losses: how many within WINDOW_S open it; 0 never does."""

    def __init__(self, losses: int) -> None:
        self._limit, self._losses = losses, deque[float]()
        self._pause_s, self._until = PAUSE_S, 0.0

    def lost(self, now: float) -> bool:
        """Counts a loss at clock time `now`; returns whether it opened the breaker."""
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
        """Seconds for which the worker is still held off."""
        return max(self._until - now, 0.0)
