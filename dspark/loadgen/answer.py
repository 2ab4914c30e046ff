"""One request as the client saw it: its intended start, when tokens arrived, how it ended.

Times are seconds of one monotonic clock. Latency counts from the *intended* start: if a client
falls behind its schedule, the wait counts as latency, so an overloaded server cannot hide requests
by slowing the client down (no coordinated omission).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from dspark.client import Speculation
from dspark.loadgen.prompts import Question

UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """One message of the stream: its new tokens and bytes; `speculation` is set at most once.

    tokens UNKNOWN: text without a count of its tokens; `spread` of a later message is the total of
    such messages.
    """

    tokens: int
    size: int  # bytes of the message, framing included
    token_ids: tuple[int, ...] = ()
    speculation: Speculation | None = None
    spread: int = 0


@dataclass(slots=True)
class MeasuredAnswer:
    """A request, and what the client received for it."""

    question: Question
    intended: float
    sent: float = 0.0
    times: list[float] = field(default_factory=list)  # arrival of each message with tokens
    counts: list[int] = field(default_factory=list)  # tokens of that message
    token_ids: list[int] = field(default_factory=list)  # empty where the server does not send ids
    size: int = 0  # bytes received
    ended: float = 0.0
    error: str = ""  # "" for a whole answer; "cut" when the measurement ended first
    speculation: Speculation | None = None

    def take(self, piece: StreamPiece, now: float) -> None:
        """Records one message that arrived at `now`."""
        self.size += piece.size
        self.token_ids += piece.token_ids
        self.speculation = piece.speculation or self.speculation
        if piece.tokens:
            self.times.append(now)
            self.counts.append(piece.tokens)
        if piece.spread:
            unknown = [place for place, count in enumerate(self.counts) if count == UNKNOWN]
            for number, place in enumerate(unknown):
                share = len(unknown)
                self.counts[place] = (
                    piece.spread * (number + 1) // share - piece.spread * number // share
                )

    @property
    def tokens(self) -> int:
        return sum(count for count in self.counts if count > 0)

    @property
    def ttft_s(self) -> float:
        """Intended start to first token."""
        return self.times[0] - self.intended

    @property
    def latency_s(self) -> float:
        """Intended start to the last message."""
        return self.ended - self.intended

    @property
    def rate(self) -> float:
        """Tokens a second after the first message, as the user sees them; 0 for an answer in one
        message."""
        span = self.times[-1] - self.times[0] if self.times else 0.0
        return (self.tokens - max(self.counts[0], 0)) / span if span > 0 else 0.0

    def gaps(self) -> list[float]:
        """Seconds between messages with tokens."""
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]

    def token_gaps(self) -> list[float]:
        """Seconds per token after the first message: a message of n tokens gives n equal gaps, so
        their mean is what a reader waits per token however the server groups them."""
        gaps = zip(self.gaps(), self.counts[1:], strict=True)
        return [gap / count for gap, count in gaps for _ in range(max(count, 0))]


class Endpoint(Protocol):
    """A server that streams answers."""

    name: str
    counted_by: str  # how tokens of messages were counted: ids, usage or total

    def stream(self, question: Question, number: int) -> AsyncIterator[StreamPiece]:
        """The answer to one question; `number` keys its draws. Raises DsparkError when the server
        refuses or fails."""

    async def counters(self) -> dict[str, float]:
        """Totals that the server publishes, for differences over a run; empty if it publishes
        none."""

    async def close(self) -> None:
        """Closes every connection."""
