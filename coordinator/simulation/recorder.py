"""What clients would have seen: tokens inside the window, and the times of whole answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coordinator.answers.answer import CommittedTokens


class Recorder:
    """Of one simulation. first, token, whole: seconds to a first token, of a token behind it, of a whole answer."""

    def __init__(self, opens: float, closes: float) -> None:
        self.opens, self.closes = opens, closes
        self.tokens = self.answers = self.failed = 0
        self.rates, self.first, self.token, self.whole = [list[float]() for _ in range(4)]

    def inside(self, now: float) -> bool:
        return self.opens <= now < self.closes


class Tap:
    """Where one request's pieces go: nobody reads them, they are only timed."""

    def __init__(self, recorder: Recorder, ended: Callable[[], object]) -> None:
        self._recorder, self._ended = recorder, ended
        self._loop = asyncio.get_running_loop()
        self._arrived = self._loop.time()
        self._first = self._last = 0.0
        self._tokens = 0

    def push(self, piece: CommittedTokens) -> None:
        count, now, recorder = len(piece.tokens), self._loop.time(), self._recorder
        if count and recorder.inside(now):
            recorder.tokens += count
            if self._tokens:
                recorder.token += [(now - self._last) / count] * count
            else:
                recorder.first.append(now - self._arrived)
        if count:
            self._first, self._last = self._first if self._tokens else now, now
            self._tokens += count

    def close(self, error: Exception | None = None) -> None:
        now, recorder = self._loop.time(), self._recorder
        if recorder.inside(now):
            recorder.failed += error is not None
            recorder.answers += error is None
            recorder.whole.append(now - self._arrived)
            if self._tokens > 1 and self._last > self._first:
                recorder.rates.append((self._tokens - 1) / (self._last - self._first))
        self._ended()
