"""The service for operators and the deployment: announces workers, reports the state of the cell,
explains requests."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import AsyncIterator, Sequence

import grpc

import dspark
from coordinator.cells.frontends import CellService, FrontendConnection
from coordinator.cells.local_cell import LocalCell
from coordinator.lanes.lane import Lane
from coordinator.planning.cost import CostCurve
from coordinator.requests.validation import check_count
from coordinator.watching.explaining import told
from coordinator.workers.membership import Membership
from coordinator.workers.worker import Address, WorkerConnection, WorkerRole
from dspark.errors import ConfigError, InvalidRequest
from dspark.runtime.addresses import split_endpoint
from dspark.runtime.shell import ShellProcess
from dspark.runtime.telemetry import Metrics
from dspark.wire.v1 import control_pb2, control_pb2_grpc, types_pb2

LOOK_S = 0.25  # longest time until the end of an explained request is noticed
DESCRIBE_S = 0.5  # a worker that takes longer to describe itself is shown without its load
MAX_WORKERS = 4096
LATENCIES = (
    "dspark_time_to_first_token_seconds",
    "dspark_request_time_per_output_token_seconds",
    "dspark_e2e_request_latency_seconds",
    "dspark_request_queue_time_seconds",
    "dspark_draft_rpc_seconds",
    "dspark_verify_rpc_seconds",
    "dspark_pipeline_bubble_seconds",
)

_ROLES = {control_pb2.ROLE_VERIFY: WorkerRole.VERIFY, control_pb2.ROLE_DRAFT: WorkerRole.DRAFT}


class ControlService(control_pb2_grpc.ControlServicer):
    """gRPC servicer of Announce, GetStatus, Explain and GetEnded."""

    def __init__(
        self, cell: LocalCell, frontends: CellService, process: ShellProcess, name: str
    ) -> None:
        self._cell, self._frontends, self._process, self._name = cell, frontends, process, name

    async def Announce(
        self, request: control_pb2.AnnounceRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.AnnounceReply:
        check_count("workers", len(request.workers), MAX_WORKERS, "workers")
        addresses = _addresses(request.workers)
        draining = [
            address
            for address, worker in zip(addresses, request.workers, strict=True)
            if worker.draining
        ]
        membership = self._cell.membership
        membership.announce(addresses, draining)
        return control_pb2.AnnounceReply(idle=membership.idle())

    async def GetStatus(
        self, request: control_pb2.GetStatusRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.GetStatusReply:
        admission, membership = self._cell.admission, self._cell.membership
        workers = await asyncio.gather(
            *(_worker_status(worker, membership) for worker in membership.workers)
        )
        reply = control_pb2.GetStatusReply(
            processes=[
                self._own_status(),
                *map(_frontend_status, self._frontends.attached),
                *workers,
            ],
            lanes=[self._lane_status(lane) for lane in membership.lanes],
            queued=admission.queued,
            queue_limit=admission.queue_limit,
            version=dspark.__version__,
        )
        write_totals(self._process.metrics, reply)
        return reply

    async def Explain(
        self, request: control_pb2.ExplainRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[control_pb2.RoundExplanation]:
        """Streams the rounds of a request until it ends or `rounds` were sent; 0 sends all."""
        admission, name, left = self._cell.admission, request.request_id, request.rounds or -1
        if admission.find(name) is None:
            raise InvalidRequest("request_id", "no running request has this id")
        with self._cell.membership.explain.request(name) as watch:
            while left:
                goes_on = admission.find(name) is not None
                parts = watch.taken()
                for part in parts[:left] if left > 0 else parts:
                    yield told(part)
                    left -= 1
                if not goes_on:
                    return
                if not parts:
                    with contextlib.suppress(TimeoutError):
                        # not `wait_for`, which forgets that the caller left if a round comes then
                        async with asyncio.timeout(LOOK_S):
                            await watch.wakeup.wait()
                        watch.wakeup.clear()

    async def GetEnded(
        self, request: control_pb2.GetEndedRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.GetEndedReply:
        endings = self._cell.admission.endings
        found = (
            endings.of(request.request_id)
            if request.request_id
            else endings.last(request.most or None)
        )
        return control_pb2.GetEndedReply(answers=found)

    def _own_status(self) -> control_pb2.ProcessStatus:
        return control_pb2.ProcessStatus(
            role=control_pb2.ROLE_COORDINATOR,
            name=self._name,
            endpoint=self._process.endpoint,
            pid=os.getpid(),
            incarnation=self._process.incarnation,
            state="draining" if self._cell.admission.draining else "serving",
            sequences=self._cell.admission.running + self._cell.admission.queued,
            metrics_port=self._process.metrics_port,
        )

    def _lane_status(self, lane: Lane) -> control_pb2.LaneStatus:
        waiting = lane.waiting
        draft = next((drafter.facts.cost for drafter in lane.drafters if drafter.facts.cost), None)
        return control_pb2.LaneStatus(
            verifier=lane.facts.name,
            drafters=[drafter.facts.name for drafter in lane.drafters],
            running=len(lane.states) - waiting,
            waiting=waiting,
            policy=str(self._cell.policy),
            cost_curve_in_force=lane.facts.cost is not None,
            verify_cost=_cost(lane.facts.cost),
            draft_cost=_cost(draft),
            mean_acceptance_length=lane.committed_by_rounds / lane.rounds if lane.rounds else 0.0,
            rounds=lane.rounds,
            attention_path=lane.facts.attention_path,
        )


def _frontend_status(attached: FrontendConnection) -> control_pb2.ProcessStatus:
    hello = attached.hello
    return control_pb2.ProcessStatus(
        role=control_pb2.ROLE_FRONTEND,
        name=hello.name,
        endpoint=hello.endpoint,
        pid=hello.pid,
        incarnation=hello.incarnation,
        state="serving",
        sequences=attached.requests,
        metrics_port=hello.metrics_port,
    )


async def _worker_status(
    worker: WorkerConnection, membership: Membership
) -> control_pb2.ProcessStatus:
    address = worker.address
    status = control_pb2.ProcessStatus(
        role=next(number for number, role in _ROLES.items() if role is address.role),
        name=address.name,
        endpoint=address.endpoint,
        incarnation=worker.port.facts.incarnation if worker.port else address.incarnation,
        state=worker.state,
        detail=worker.detail,
    )
    if worker.port is None:
        return status
    status.detail = status.detail or membership.why_not(worker.port)
    try:
        said = await worker.describe(DESCRIBE_S)
    except grpc.aio.AioRpcError as error:
        status.detail = f"does not say what it holds: {error.code().name.lower()}"
        return status
    status.pid, status.model = said.pid, said.model
    status.sequences = said.load.sequences
    status.metrics_port = said.metrics_port
    if said.draining:
        status.state = "draining"
    status.pages_held, status.pages_total = said.load.pages_held, said.load.pages_total
    status.busy_s, status.wait_s, status.waits = said.load.busy_s, said.load.wait_s, said.load.waits
    return status


def _addresses(workers: Sequence[control_pb2.WorkerEndpoint]) -> list[Address]:
    """Of announced workers; one process would get two lanes if it were announced twice."""
    found = dict[tuple[str, int], Address]()
    for index, worker in enumerate(workers):
        at, shown = (worker.endpoint, worker.incarnation), repr(worker.endpoint[:80])
        if at in found:
            raise InvalidRequest(f"workers[{index}].endpoint", f"{shown} is announced twice")
        role = _ROLES.get(worker.role)
        if role is None:
            raise InvalidRequest(f"workers[{index}].role", "must be a verifier or a drafter")
        try:
            port = split_endpoint(worker.endpoint)[1]
        except ConfigError:
            port = 0
        if not port:
            raise InvalidRequest(f"workers[{index}].endpoint", f"{shown} is not host:port")
        found[at] = Address(role, *at, worker.name or f"{role.value}/{index}")
    return [*found.values()]


def _cost(curve: CostCurve | None) -> types_pb2.CostCurve | None:
    if curve is None:
        return None
    tokens, contexts, seconds = curve.grid()
    return types_pb2.CostCurve(
        tokens=tokens,
        contexts=contexts,
        seconds=seconds,
        source="measured",
        borrowed=curve.borrowed,
    )


def write_totals(metrics: Metrics, reply: control_pb2.GetStatusReply) -> None:
    """Adds the metrics to `reply`: counters summed over labels, those at zero left out, and the
    latency histograms bucket by bucket."""
    for family in metrics.registry.collect():
        if family.type == "counter":
            total = sum(sample.value for sample in family.samples if sample.name.endswith("_total"))
            if total:
                reply.totals[f"{family.name}_total"] = total
        elif family.type == "histogram" and family.name in LATENCIES:
            added = reply.distributions.add(name=family.name)
            below = 0.0
            for sample in family.samples:
                if sample.name.endswith("_bucket"):
                    bound = float(sample.labels["le"])
                    if not math.isinf(bound):
                        added.bounds.append(bound)
                    added.counts.append(int(sample.value - below))
                    below = sample.value
                elif sample.name.endswith("_sum"):
                    added.sum = sample.value
