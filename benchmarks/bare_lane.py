"""A lane in the measuring process, before synthetic workers: requests enter and pieces leave as through a front end.

Admission, lane, scheduler and the gRPC sessions are the deployed ones; no client streams. Temperature 1, 64 entries of
q per drafted slot. Nobody joins or leaves while it is measured.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import structlog

from benchmarks.synthetic_cell import SyntheticWorkers
from coordinator.admission import Admission, Bounds
from coordinator.answer import Answer, Piece
from coordinator.commit_log import CommitLog
from coordinator.lane import Conduct, Lane
from coordinator.membership import Membership
from coordinator.policy import parse_policy
from coordinator.request import Request
from coordinator.sequence import Sequence
from coordinator.tally import Tally
from coordinator.track import Track
from coordinator.worker import Address, Role
from dspark.runtime.telemetry import Metrics
from dspark.types import Law

PROMPT = 32
ANSWER = 1 << 14  # longer than any measurement
WARM_UP_S = 60.0
WARM_UP_ROUNDS = 24  # all are in, evidence is there

_numbers: Iterator[int] = itertools.count(1)  # of sequences: none is used twice


class Drain:
    """Stands in for a front end: takes pieces as they come."""

    def push(self, piece: Piece) -> None:
        pass

    def close(self, error: Exception | None = None) -> None:
        pass


def quiet() -> None:
    """Warnings only."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


@asynccontextmanager
async def running_lane(
    workers: SyntheticWorkers, policy: str, sequences: int, conduct: Conduct | None = None
) -> AsyncIterator[tuple[Lane, Metrics]]:
    """A lane in the middle of its rounds."""
    clock, metrics = asyncio.get_running_loop(), Metrics()
    admission = Admission(Bounds(max_running=sequences, max_queued=sequences), clock, metrics)
    membership = Membership(
        admission, waits=conduct or Conduct(), describe_s=5.0, token=None, clock=clock, metrics=metrics
    )
    addresses = [
        Address(role, endpoint, 0, f"{role.value}/0") for role in Role for endpoint in workers.endpoints(role.value)
    ]
    try:
        assert await membership.announce(addresses) == len(addresses)
        tracks = [_track(next(_numbers), policy, clock.time()) for _ in range(sequences)]
        for track in tracks:
            admission.submit(track)
        async with asyncio.timeout(WARM_UP_S):
            while any(track.sequence.round < WARM_UP_ROUNDS for track in tracks):  # noqa: ASYNC110  rounds ring no bell
                await asyncio.sleep(0.1)
        yield membership.lanes[0], metrics
    finally:
        admission.cut_all()
        await membership.close()


def _track(number: int, policy: str, now: float) -> Track:
    prompt = tuple(2 + (number * 31 + at) % 1000 for at in range(PROMPT))
    log = CommitLog(prompt)
    request = Request(f"r{number}", prompt, Law(temperature=1.0, seed=number), ANSWER, parse_policy(policy))
    return Track(request, Sequence(number, log), Answer(log, max_tokens=ANSWER), Tally(now), Drain())
