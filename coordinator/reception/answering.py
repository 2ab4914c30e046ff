"""A request between the desk and whoever reads its answers, the same for every entry.

Whoever leaves, by `leave` in any case, frees what has not ended in both pools at once. What waits for a reader that is
slower than the cell comes in one part.
"""

from __future__ import annotations

from coordinator.answers.answer import Piece
from coordinator.clock import Clock
from coordinator.reception.frontdesk import Asked, FrontDesk
from coordinator.reception.reading import Reader, Shown
from coordinator.requests.request import Request
from dspark.errors import Cancelled, Expired, PeerError
from dspark.runtime.telemetry import Metrics
from dspark.types import PromptLogprobs
from dspark.wire.v1 import generate_pb2


class Answering:
    """A request that was taken in."""

    def __init__(self, asked: Asked, budget_s: float, clock: Clock, metrics: Metrics) -> None:
        self._asked, self._metrics = asked, metrics
        self._timer = clock.call_later(budget_s, asked.call.cut, Expired(f"no answer within {budget_s:.3g} s"))
        self.pieces: list[tuple[Piece, float]] = []  # what the newest parts were read from, with clock times
        self.scored: PromptLogprobs | None = None  # what came of the prompt with them
        metrics.client_streams.inc()

    @staticmethod
    async def begin(
        desk: FrontDesk, message: generate_pb2.GenerateRequest, budget_s: float, clock: Clock, metrics: Metrics
    ) -> Answering:
        """Takes a request in, or raises an error that says whose fault it is."""
        return Answering(await desk.accept(message, budget_s), budget_s, clock, metrics)

    @property
    def request(self) -> Request:
        return self._asked.request

    @property
    def reader(self) -> Reader:
        return self._asked.reader

    @property
    def done(self) -> bool:
        """Whether every answer has ended."""
        return self._asked.reader.done

    async def parts(self) -> list[Shown]:
        """Waits for something new and returns all of it: one part per answer, none where nothing can be shown yet."""
        waiting = await self._asked.outlet.take()
        if waiting is None:
            raise PeerError("the cell closed a request whose answers have not ended")
        self.pieces = waiting
        had = self.reader.prompt_logprobs
        shown = self._asked.reader.read(waiting, self._asked.call.finish)
        self.scored = self.reader.prompt_logprobs if had is None else None
        self._metrics.client_chunks.inc(len(shown))
        return shown

    def cut(self, error: Exception) -> None:
        """Ends what has not ended yet; whoever waits for parts hears the error."""
        self._asked.call.cut(error)

    def leave(self) -> None:
        """Nobody reads any more."""
        self._timer.cancel()
        self._metrics.client_streams.dec()
        if unsaid := self._asked.reader.unsaid:
            self._metrics.dropped.labels(kind="token", reason="behind_stop_string").inc(unsaid)
        self._asked.call.cut(Cancelled("the client went away"))  # a no-op unless the answers were cut short
