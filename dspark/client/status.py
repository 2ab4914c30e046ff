"""The state of a cell as its coordinator reports it: typed, frozen, without protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dspark.client.fields import copied
from dspark.wire.v1 import control_pb2, types_pb2


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One process of the cell."""

    role: str = ""  # "coordinator", "frontend", "verify" or "draft"
    name: str = ""  # for people, e.g. "draft/0"
    endpoint: str = ""  # host:port
    pid: int = 0
    incarnation: int = 0  # drawn at process start
    state: str = ""  # "serving", "warming", "connecting", "draining" or "lost"
    sequences: int = 0  # with state in the process
    pages_held: int = 0
    pages_total: int = 0
    model: str = ""  # what it serves
    detail: str = ""  # why it is not serving
    metrics_port: int = 0  # 0 when it is off
    busy_s: float = 0.0  # of a worker: seconds its device worked since it started
    wait_s: float = 0.0  # of a drafter: seconds cohorts waited for it to be free, all together
    waits: int = 0  # of a drafter: cohorts that it received

    @property
    def condition(self) -> str:
        """The state, followed by the detail in parentheses if there is one."""
        return f"{self.state} ({self.detail})" if self.detail else self.state


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """Seconds of one step by (tokens or sequences in it, context of each)."""

    tokens: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]  # [tokens, contexts]
    source: str = ""
    # indices into the flattened `seconds` that hold a neighbour's value, not a measured one
    borrowed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """A verifier and the drafters that feed it."""

    verifier: str
    drafters: tuple[str, ...] = ()
    running: int = 0  # sequences in rounds
    waiting: int = 0  # sequences admitted and not yet running
    policy: str = ""
    cost_curve_in_force: bool = False
    verify_cost: MeasuredCost | None = None
    draft_cost: MeasuredCost | None = None
    mean_acceptance_length: float = 0.0  # tau over the lane's life
    rounds: int = 0  # of sequences, since start
    attention_path: str = ""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram of the coordinator since it started; the difference of two readings covers the
    time between them."""

    name: str  # of the metric
    bounds: tuple[float, ...]  # upper ones, ascending; the last bucket has none
    counts: tuple[int, ...]  # per bucket, not cumulated
    sum: float = 0.0


@dataclass(frozen=True, slots=True)
class CellStatus:
    """The state of the whole cell."""

    processes: tuple[ProcessStatus, ...] = ()  # the coordinator first
    lanes: tuple[LaneStatus, ...] = ()  # one per verifier
    queued: int = 0  # requests waiting for admission
    queue_limit: int = 0
    version: str = ""
    # counters by metric name, without labels
    totals: Mapping[str, float] = field(default_factory=dict)
    distributions: tuple[Distribution, ...] = ()


def read_status(message: control_pb2.GetStatusReply) -> CellStatus:
    """The `CellStatus` of a reply to GetStatus."""
    lanes = tuple(
        copied(
            LaneStatus, one, verify_cost=_cost(one.verify_cost), draft_cost=_cost(one.draft_cost)
        )
        for one in message.lanes
    )
    return copied(CellStatus, message, lanes=lanes, totals=dict(message.totals))


def _cost(curve: types_pb2.CostCurve) -> MeasuredCost | None:
    """The curve with its flat seconds as rows by tokens; None when nothing was measured."""
    if not curve.seconds:
        return None
    width = max(len(curve.contexts), 1)
    rows = tuple(
        tuple(curve.seconds[start : start + width]) for start in range(0, len(curve.seconds), width)
    )
    return copied(MeasuredCost, curve, seconds=rows)
