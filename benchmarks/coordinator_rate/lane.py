"""Committed tokens per second of processor time of the process that runs a lane (B6).

The lane is in this process, before two synthetic workers in theirs. Admission, lane, scheduler and
the gRPC sessions are the deployed ones. Requests come in by an attached front end's message and
commits leave in its batches, packed to bytes (`coordinator.cells.frontends`), as a coordinator with
front ends in processes of their own does it; only the writing of those few messages to a socket is
left out. Temperature 1, 64 entries of q per drafted slot. No request joins or leaves while it is
measured. The same run measures it without drafts too (policy `off`).
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks import real_cell
from benchmarks.row import Row, note, quiet
from coordinator.cells.frontends import FrontendConnection
from coordinator.cells.local_cell import LocalCell
from coordinator.config import CoordinatorConfig
from coordinator.lanes.lane import Lane
from coordinator.lanes.lane_context import LaneContext
from coordinator.queue.scheduler import Scheduler
from coordinator.workers.membership import Membership
from coordinator.workers.worker import Address, WorkerRole
from deploy.processes import ProcessCell
from dspark.client.request import Options, write_request
from dspark.rounds.policy import parse_policy
from dspark.runtime.process import collect_rarely
from dspark.runtime.security import Security
from dspark.runtime.telemetry import Metrics
from dspark.wire.v1 import frontend_pb2

WITH_DRAFTS, PLAIN = 100_000.0, 60_000.0
SEQUENCES = 256  # in rounds at one time
PROMPT = 32
ANSWER = 1 << 14  # longer than any measurement
ANSWER_S = 3600.0  # likewise
WARM_UP_S = 60.0
WARM_UP_ROUNDS = 24  # all are admitted, and there is evidence to plan by


def row(*, quick: bool) -> Row:
    quiet()
    windows, seconds = (3, 1.5) if quick else (7, 3.0)
    value: dict[str, object] = {"sequences": SEQUENCES}
    rate: dict[str, int] = {}
    with real_cell.workers(room=2 * SEQUENCES) as workers:
        for policy in ("adaptive", "off"):
            rates, per_round = asyncio.run(_measure(workers, policy, windows, seconds))
            rate[policy] = round(statistics.median(rates))
            note(
                f"{policy}: {[round(rate) for rate in rates]} tokens per CPU second, "
                f"{per_round:.2f} tokens a round"
            )
            if policy != "off":
                value["tokens_per_round"] = round(per_round, 2)
    bar = (
        f"committed tokens per CPU second of the lane process, at least {WITH_DRAFTS:.0f}; "
        f"{PLAIN:.0f} plain"
    )
    holds = rate["adaptive"] >= WITH_DRAFTS and rate["off"] >= PLAIN
    return Row("B6", "lane rate", value | rate, bar, holds)


async def _measure(
    workers: ProcessCell, policy: str, windows: int, seconds: float
) -> tuple[list[float], float]:
    """Tokens per CPU second of every window, and tokens a round over all of them."""
    async with _running_lane(workers, policy) as lane:
        rates, rounds, tokens = [], lane.rounds, lane.committed_by_rounds
        for _ in range(windows):
            before, began = lane.committed_by_rounds, time.process_time()
            await asyncio.sleep(seconds)
            rates.append((lane.committed_by_rounds - before) / (time.process_time() - began))
        return rates, (lane.committed_by_rounds - tokens) / (lane.rounds - rounds)


@asynccontextmanager
async def _running_lane(workers: ProcessCell, policy: str) -> AsyncIterator[Lane]:
    """Context: a lane in the middle of its rounds."""
    clock, metrics = asyncio.get_running_loop(), Metrics()
    config = CoordinatorConfig(max_running=SEQUENCES, max_queued=SEQUENCES, warm_up_s=0.0)
    admission = Scheduler(config, clock, metrics)
    lanes = LaneContext(clock, metrics, config)
    membership = Membership(admission, lanes, Security())
    addresses = [
        Address(role, endpoint, 0, f"{role.value}/0")
        for role in WorkerRole
        for endpoint in workers.endpoints(role.value)
    ]
    attachment: FrontendConnection | None = None
    front: asyncio.Task[None] | None = None
    try:
        membership.announce(addresses)
        await membership.settled()
        assert all(worker.port is not None for worker in membership.workers)
        cell = LocalCell(admission, membership, parse_policy(policy))
        hello = frontend_pb2.FrontendHello(name="frontend/0")
        attachment = FrontendConnection(cell, hello, clock, metrics)
        front = asyncio.create_task(_read(attachment))
        requests = [_submit(number, policy) for number in range(SEQUENCES)]
        attachment.heard(frontend_pb2.FrontendBatch(submits=requests))
        names = [submit.request.request_id for submit in requests]
        async with asyncio.timeout(WARM_UP_S):
            while any(_rounds(admission, name) < WARM_UP_ROUNDS for name in names):  # noqa: ASYNC110  rounds ring no wakeup
                await asyncio.sleep(0.1)
        collect_rarely()  # as processes that serve do
        yield membership.lanes[0]
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
    """Reads the front end's stream, up to the socket. Raises RuntimeError when a request failed."""
    while (batch := await attachment.next()) is not None:
        batch.SerializeToString()
        if batch.failed:
            raise RuntimeError(f"a request failed: {batch.failed[0]}")


def _submit(number: int, policy: str) -> frontend_pb2.Submit:
    prompt = [2 + (number * 31 + at) % 1000 for at in range(PROMPT)]
    options = Options(
        policy=policy,
        temperature=1.0,
        seed=number,
        rule="block",
        max_tokens=ANSWER,
        ignore_eos=True,
    )
    message = write_request(prompt, options)
    message.request_id = f"r{number}"
    return frontend_pb2.Submit(call=number, request=message, deadline_us=int(ANSWER_S * 1e6))


def _rounds(admission: Scheduler, request_id: str) -> int:
    state = admission.find(request_id)
    if state is None:
        raise RuntimeError(f"{request_id} is not running any more")
    return state.stats.rounds
