"""The interface of a coordinator to a front end, in one process or over gRPC. It carries tokens,
never text."""

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
    """The model and drafter that a cell serves, and the limits of a request."""

    model: str
    drafter: str  # empty without one
    block_size: int  # 0 without a drafter
    limits: Limits
    fingerprint: str = ""  # of the target's configuration and weights
    ready: bool = True  # the first requests have run


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """A request that passed every check, as a front end submits it."""

    message: generate_pb2.GenerateRequest  # as the client wrote it
    request: Request
    arrived: float  # clock time
    lasts_s: float  # seconds until it expires


class RequestHandle(Protocol):
    """A submitted request. Both methods do nothing to answers that have already ended."""

    def finish(self, index: int) -> None:
        """Ends answer `index`: its text is complete, tokens committed later are not part of it."""

    def cut(self, error: Exception) -> None:
        """Ends every unfinished answer with `error` and frees what it holds at once."""


class CellPort(Protocol):
    """A coordinator and its workers. An error's type shows whether client or server is at fault; a
    request that raised one was not admitted."""

    draining: bool  # refuses new requests because it is about to end

    def terms(self) -> CellTerms: ...

    def check_capacity(self, tenant: str = "", resumed: str = "") -> None:
        """Raises when a request of this tenant would surely be refused. Cheap, so it comes before
        parsing. resumed: id of a request that is resumed, which needs no room while it runs."""

    def submit(self, order: SubmitRequest, sink: OutputSink) -> RequestHandle: ...

    async def abort(self, request_ids: Sequence[str]) -> list[str]:
        """Ends running requests of any client with the reason ABORT; returns the ids of those that
        were running."""

    async def emptied(self, longest_s: float) -> None:
        """Waits until no request is open, for at most `longest_s` seconds."""

    def cut_all(self) -> None:
        """Ends every request with an error that states how far its answer is."""

    async def close(self) -> None:
        """Releases everything the cell holds."""


def served(cell: CellPort | None) -> str:
    """The target's name as verifiers report it; empty while none is connected."""
    try:
        return cell.terms().model if cell is not None else ""
    except Unavailable:
        return ""
