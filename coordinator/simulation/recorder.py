"""What clients would have seen: tokens inside the window, and the times of whole answers. Bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from coordinator.answers.answer import CommittedTokens
from coordinator.answers.output_queue import OutputQueue

LEAST_S, MOST_S, STEPS = 1e-6, 1e5, 2200  # logarithmic bins: neighbouring edges differ by 1.2 %


class Times:
    """A histogram of durations, accurate to about one per cent."""

    def __init__(self) -> None:
        self._counts: npt.NDArray[np.int64] = np.zeros(STEPS, np.int64)
        self._scale = (STEPS - 1) / np.log(MOST_S / LEAST_S)
        self.total_s = 0.0
        self.count = 0

    def add(self, seconds: float, times: int = 1) -> None:
        place = int(np.log(max(seconds, LEAST_S) / LEAST_S) * self._scale)
        self._counts[min(place, STEPS - 1)] += times
        self.total_s += seconds * times
        self.count += times

    def quantile(self, share: float) -> float:
        """Seconds below which this share lies; 0 without any."""
        if not self.count:
            return 0.0
        place = int(np.searchsorted(np.cumsum(self._counts), share * self.count))
        return float(LEAST_S * np.exp((min(place, STEPS - 1) + 0.5) / self._scale))

    def spread(self) -> dict[str, float] | None:
        """Milliseconds, as `dspark bench` prints them."""
        if not self.count:
            return None
        named = {"mean": self.total_s / self.count, **{f"p{q}": self.quantile(q / 100) for q in (50, 90, 99)}}
        return {name: round(1000 * value, 3) for name, value in named.items()}


class Recorder:
    """Of one simulation."""

    def __init__(self, opens: float, closes: float) -> None:
        self.opens, self.closes = opens, closes
        self.tokens = 0
        self.answers = 0
        self.failed = 0
        self.rates: list[float] = []
        self.first, self.token, self.whole = Times(), Times(), Times()

    def inside(self, now: float) -> bool:
        return self.opens <= now < self.closes


class Tap(OutputQueue):
    """Where one request's pieces go: nobody reads them, they are only timed."""

    def __init__(self, recorder: Recorder, number: int, ended: Callable[[int], None]) -> None:
        super().__init__(1)
        self._recorder, self._number, self._ended = recorder, number, ended
        self._loop = asyncio.get_running_loop()
        self._arrived = self._loop.time()
        self._first = self._last = 0.0
        self._tokens = 0
        self._over = False

    def push(self, piece: CommittedTokens) -> None:
        count = len(piece.tokens)
        if not count:
            return
        now, recorder = self._loop.time(), self._recorder
        if not self._tokens:
            self._first = now
            if recorder.inside(now):
                recorder.first.add(now - self._arrived)
        elif recorder.inside(now):
            recorder.token.add((now - self._last) / count, count)
        if recorder.inside(now):
            recorder.tokens += count
        self._tokens += count
        self._last = now

    def close(self, error: Exception | None = None) -> None:
        if self._over:
            return
        self._over = True
        recorder = self._recorder
        if recorder.inside(self._loop.time()):
            recorder.failed += error is not None
            recorder.answers += error is None
            recorder.whole.add(self._loop.time() - self._arrived)
            if self._tokens > 1 and self._last > self._first:
                recorder.rates.append((self._tokens - 1) / (self._last - self._first))
        self._ended(self._number)
