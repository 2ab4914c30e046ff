"""A cell as its coordinator sees it: typed, frozen, without protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dspark.wire.v1 import control_pb2, types_pb2

_ROLES = {
    control_pb2.ROLE_COORDINATOR: "coordinator",
    control_pb2.ROLE_FRONTEND: "frontend",
    control_pb2.ROLE_VERIFY: "verify",
    control_pb2.ROLE_DRAFT: "draft",
}


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One process of the cell."""

    role: str = ""  # "coordinator", "frontend", "verify" or "draft"
    name: str = ""  # for people, e.g. "draft/0"
    endpoint: str = ""  # host:port
    pid: int = 0
    incarnation: int = 0  # drawn at process start
    state: str = ""  # "serving", "connecting", "draining" or "lost"
    sequences: int = 0  # with state in the process
    pages_held: int = 0
    pages_total: int = 0
    model: str = ""  # what it serves
    detail: str = ""  # why it is not serving
    metrics_port: int = 0  # 0 when it is off
    busy_s: float = 0.0  # of a worker: seconds its device worked since it started
    wait_s: float = 0.0  # of a drafter: seconds cohorts waited for it to be free, all together
    waits: int = 0  # of a drafter: cohorts that came to it


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """Seconds of one step by (tokens or sequences in it, context of each)."""

    tokens: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]  # [tokens, contexts]
    source: str = ""
    borrowed: tuple[
        int, ...
    ] = ()  # places in the rows, one after the other, that were not measured: a neighbour's value


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
    """A histogram of the coordinator since it started; of two readings, the difference is what happened in between."""

    name: str  # of the metric
    bounds: tuple[float, ...]  # upper ones, ascending; the last bucket has none
    counts: tuple[int, ...]  # per bucket, not cumulated
    sum: float = 0.0


@dataclass(frozen=True, slots=True)
class CellStatus:
    """The whole cell."""

    processes: tuple[ProcessStatus, ...] = ()  # the coordinator first
    lanes: tuple[LaneStatus, ...] = ()  # one per verifier
    queued: int = 0  # requests waiting for admission
    queue_limit: int = 0
    version: str = ""
    totals: Mapping[str, float] = field(default_factory=dict)  # counters by metric name, without labels
    distributions: tuple[Distribution, ...] = ()


def read_status(message: control_pb2.GetStatusReply) -> CellStatus:
    """What `GetStatus` says."""
    return CellStatus(
        processes=tuple(map(_process, message.processes)),
        lanes=tuple(map(_lane, message.lanes)),
        queued=message.queued,
        queue_limit=message.queue_limit,
        version=message.version,
        totals=dict(message.totals),
        distributions=tuple(
            Distribution(one.name, tuple(one.bounds), tuple(one.counts), one.sum) for one in message.distributions
        ),
    )


def _process(one: control_pb2.ProcessStatus) -> ProcessStatus:
    return ProcessStatus(
        role=_ROLES.get(one.role, "unknown"),
        name=one.name,
        endpoint=one.endpoint,
        pid=one.pid,
        incarnation=one.incarnation,
        state=one.state,
        sequences=one.sequences,
        pages_held=one.pages_held,
        pages_total=one.pages_total,
        model=one.model,
        detail=one.detail,
        metrics_port=one.metrics_port,
        busy_s=one.busy_s,
        wait_s=one.wait_s,
        waits=one.waits,
    )


def _lane(one: control_pb2.LaneStatus) -> LaneStatus:
    return LaneStatus(
        verifier=one.verifier,
        drafters=tuple(one.drafters),
        running=one.running,
        waiting=one.waiting,
        policy=one.policy,
        cost_curve_in_force=one.cost_curve_in_force,
        verify_cost=_cost(one.verify_cost),
        draft_cost=_cost(one.draft_cost),
        mean_acceptance_length=one.mean_acceptance_length,
        rounds=one.rounds,
        attention_path=one.attention_path,
    )


def _cost(curve: types_pb2.CostCurve) -> MeasuredCost | None:
    """None when nothing was measured."""
    if not curve.seconds:
        return None
    width = max(len(curve.contexts), 1)
    rows = tuple(tuple(curve.seconds[start : start + width]) for start in range(0, len(curve.seconds), width))
    return MeasuredCost(tuple(curve.tokens), tuple(curve.contexts), rows, curve.source, tuple(curve.borrowed))
