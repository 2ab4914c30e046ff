"""What a front end needs of a coordinator, in the same process or across a wire: tokens, never
text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from coordinator.answers.output_queue import OutputSink
from coordinator.requests.request import Request
from coordinator.requests.validation import Limits
from dspark.errors import Unavailable
from dspark.wire.v1 import generate_pb2


@dataclass(frozen=True, slots=True)
class CellTerms:
    """What is served, under which limits."""

    model: str
    drafter: str  # empty without one
    block_size: int  # 0 without a drafter
    limits: Limits
    fingerprint: str = ""  # of the target's configuration and weights
    ready: bool = True  # the first requests have run


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """A request that passed every check."""

    message: generate_pb2.GenerateRequest  # as the client wrote it
    request: Request
    arrived: float  # clock time
    lasts_s: float  # how long it may take from now on


class RequestHandle(Protocol):
    """A request that was taken in. Both may come too late, and do nothing then."""

    def finish(self, index: int) -> None:
        """Its text ended an answer; what is committed from now on was never said."""

    def cut(self, error: Exception) -> None:
        """Nobody waits for what has not ended yet; frees it at once."""


class CellPort(Protocol):
    """A coordinator and its workers. Errors say whose fault it is, and mean that nothing was taken
    in."""

    draining: bool  # it takes nobody new because it is about to end

    def terms(self) -> CellTerms: ...

    def check_capacity(self, tenant: str = "") -> None:
        """Raises when a request of this tenant would surely be refused. Cheap, so it comes before
        parsing."""

    def submit(self, order: SubmitRequest, sink: OutputSink) -> RequestHandle: ...

    async def abort(self, request_ids: Sequence[str]) -> list[str]:
        """Ends running requests in good order, whoever asked for them; returns those that were
        running."""

    async def emptied(self, longest_s: float) -> None:
        """Until no request is open, or for so long."""

    def cut_all(self) -> None:
        """Ends every request, saying where its answer stands."""

    async def close(self) -> None:
        """Lets everything go that it holds."""


def served(cell: CellPort | None) -> str:
    """The target as workers name it; empty while nobody has."""
    try:
        return cell.terms().model if cell is not None else ""
    except Unavailable:
        return ""
