"""Client library: needs grpcio and protobuf, nothing else.

    with Client("127.0.0.1:50051") as client:
        for event in client.generate("Explain CRDTs", max_tokens=64, temperature=0.7):
            print(event.text, end="", flush=True)

`generate` yields `Chunk` events and one `Finished`. Leaving the loop ends the request and frees
everything it held. `AsyncClient` is the same with `async for`. Error statuses are raised as
exceptions, see `dspark.client.errors`.
"""

from dspark.client.asynchronous import AsyncClient, AsyncStream
from dspark.client.cell import Cell, NoCell, find_cell
from dspark.client.errors import Cancelled, DeadlineExceeded, ServerError
from dspark.client.events import (
    Choice,
    ChoiceEnd,
    Chunk,
    Completion,
    Event,
    Finished,
    ModelInfo,
    PromptLogprobs,
    Speculation,
    Timings,
    TokenLogprobs,
    Usage,
)
from dspark.client.explanation import EndedAnswer, RoundExplanation, SlotExplanation
from dspark.client.request import Options
from dspark.client.status import CellStatus, Distribution, LaneStatus, MeasuredCost, ProcessStatus
from dspark.client.synchronous import Client, Stream
from dspark.errors import (
    Denied,
    DsparkError,
    InvalidRequest,
    Overloaded,
    Unavailable,
    Unsupported,
)
from dspark.runtime.tls import Tls

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "Cancelled",
    "Cell",
    "CellStatus",
    "Choice",
    "ChoiceEnd",
    "Chunk",
    "Client",
    "Completion",
    "DeadlineExceeded",
    "Denied",
    "Distribution",
    "DsparkError",
    "EndedAnswer",
    "Event",
    "Finished",
    "InvalidRequest",
    "LaneStatus",
    "MeasuredCost",
    "ModelInfo",
    "NoCell",
    "Options",
    "Overloaded",
    "ProcessStatus",
    "PromptLogprobs",
    "RoundExplanation",
    "ServerError",
    "SlotExplanation",
    "Speculation",
    "Stream",
    "Timings",
    "Tls",
    "TokenLogprobs",
    "Unavailable",
    "Unsupported",
    "Usage",
    "find_cell",
]
