"""A lane in the measuring process, before synthetic workers: requests enter and pieces leave as through a front end.

Admission, lane, scheduler and the gRPC sessions are the deployed ones. Requests come in by an attached front end's
message and commits leave in its batches, packed to bytes (`coordinator.cells.attachment`), as a coordinator with front
ends in processes of their own does it; only the writing of those few messages to a socket is left out. Temperature 1,
64 entries of q per drafted slot. Nobody joins or leaves while it is measured.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import structlog

from benchmarks.synthetic_cell import SyntheticWorkers
from coordinator.cells.frontends import FrontendConnection
from coordinator.cells.local_cell import LocalCell, Offer
from coordinator.lanes.conduct import Conduct, LaneContext
from coordinator.lanes.lane import Lane
from coordinator.lanes.monitor import Monitor
from coordinator.queue.scheduler import QueueBounds, Scheduler
from coordinator.workers.membership import Membership
from coordinator.workers.worker import Address, WorkerAccess, WorkerRole
from dspark.client.request import Sampling, write_request
from dspark.rounds.policy import parse_policy
from dspark.runtime.telemetry import Metrics
from dspark.wire.v1 import frontend_pb2

PROMPT = 32
ANSWER = 1 << 14  # longer than any measurement
ANSWER_S = 3600.0  # likewise
WARM_UP_S = 60.0
WARM_UP_ROUNDS = 24  # all are in, evidence is there

_numbers: Iterator[int] = itertools.count(1)  # of requests: none is used twice


def quiet() -> None:
    """Warnings only."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


@asynccontextmanager
async def running_lane(
    workers: SyntheticWorkers,
    policy: str,
    sequences: int,
    conduct: Conduct | None = None,
) -> AsyncIterator[tuple[Lane, Metrics]]:
    """A lane in the middle of its rounds."""
    clock, metrics = asyncio.get_running_loop(), Metrics()
    admission = Scheduler(QueueBounds(max_running=sequences, max_queued=sequences), clock, metrics)
    lanes = LaneContext(clock, metrics, Monitor(metrics), conduct or Conduct())
    membership = Membership(admission, lanes, WorkerAccess())
    addresses = [
        Address(role, endpoint, 0, f"{role.value}/0")
        for role in WorkerRole
        for endpoint in workers.endpoints(role.value)
    ]
    attachment: FrontendConnection | None = None
    front: asyncio.Task[None] | None = None
    try:
        assert await membership.announce(addresses) == len(addresses)
        cell = LocalCell(admission, membership, Offer(parse_policy(policy)))
        hello = frontend_pb2.FrontendHello(name="frontend/0")
        attachment = FrontendConnection(cell, hello, clock, metrics)
        front = asyncio.create_task(_read(attachment))
        requests = [_submit(next(_numbers), policy) for _ in range(sequences)]
        attachment.heard(frontend_pb2.FrontendBatch(submits=requests))
        names = [submit.request.request_id for submit in requests]
        async with asyncio.timeout(WARM_UP_S):
            while any(_rounds(admission, name) < WARM_UP_ROUNDS for name in names):  # noqa: ASYNC110  rounds ring no wakeup
                await asyncio.sleep(0.1)
        yield membership.lanes[0], metrics
        if front.done():
            front.result()
    finally:
        if attachment is not None:
            attachment.close()
        if front is not None:
            await asyncio.gather(front, return_exceptions=True)
        admission.cut_all()
        await membership.close()


async def _read(attachment: FrontendConnection) -> None:
    """The front end's stream, up to the socket. Raises when a request failed."""
    while (batch := await attachment.next()) is not None:
        batch.SerializeToString()
        if batch.failed:
            raise RuntimeError(f"a request failed: {batch.failed[0]}")


def _submit(number: int, policy: str) -> frontend_pb2.Submit:
    prompt = [2 + (number * 31 + at) % 1000 for at in range(PROMPT)]
    options = Sampling(policy=policy, temperature=1.0, seed=number, rule="block", max_tokens=ANSWER, ignore_eos=True)
    message = write_request(prompt, options)
    message.request_id = f"r{number}"
    return frontend_pb2.Submit(call=number, request=message, deadline_us=int(ANSWER_S * 1e6))


def _rounds(admission: Scheduler, request_id: str) -> int:
    state = admission.find(request_id)
    if state is None:
        raise RuntimeError(f"{request_id} is not running any more")
    return state.stats.rounds
