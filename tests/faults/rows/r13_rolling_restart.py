"""Row 13: SIGTERM to every worker in turn, under load: health says so first, answers finish there
or move, none fails.

One round restarts all verifiers and drafters, one after the other, each when the one before is
connected again.
"""

import asyncio
import time

import grpc

from deploy.service_registry import ROOMS
from deploy.topology import ProcessRole
from dspark.runtime.channel import health_of, sync_channel
from tests.faults.processes import EXIT_S, FaultCell
from tests.faults.rows.program import Args, Rows, statement
from tests.faults.streams import hurt, judged, wave
from tests.waiting import wait_until

STREAMS, TOKENS = 8, 160
HEALTH_S = 0.2
RESTARTS, LONG_RESTARTS = 4, 20


def rows(args: Args) -> Rows:
    restarts = LONG_RESTARTS if args.long else RESTARTS
    grace, flips, codes = {"grace_s": 4.0}, list[float](), list[int]()
    with FaultCell(
        verifiers=2, drafters=2, coordinator={"max_handovers": 0}, verify=grace, draft=grace
    ) as cell:

        def restart(name: str) -> None:
            flips.append(_flip(cell, name))
            codes.append(cell.children[name].process.wait(EXIT_S))
            cell.restart(name)

        work = hurt(cell, wave(STREAMS, TOKENS), restart, cell.workers, restarts)
        streams, _ = asyncio.run(work)
    value = {"restarts": restarts, **judged(streams), "killed": sum(code != 0 for code in codes)}
    value["longest_pause_s"] = round(max(one.longest_gap_s for one in streams), 2)
    value["not_serving_after_s"] = round(max(flips), 3)
    bars = {
        "0 failed with no loss allowed": not value["killed"],
        "the target's ids or by its law": value["right"] == len(streams),
        f"NOT_SERVING within {HEALTH_S:g} s of SIGTERM": max(flips) <= HEALTH_S,
    }
    yield statement("13", "a rolling restart fails nobody", value, bars)


def _flip(cell: FaultCell, name: str) -> float:
    """Seconds from SIGTERM until health says that it does not serve, or nothing more."""
    service = ROOMS[ProcessRole(name.partition("/")[0])].service
    with sync_channel(cell.children[name].endpoint) as channel:

        def serves() -> bool:
            try:
                return health_of(channel, service) == "serving"
            except grpc.RpcError:
                return False

        serves()  # the connection is there
        told = time.monotonic()
        cell.terminate(name)
        wait_until(lambda: not serves())
        return time.monotonic() - told
