"""SIGTERM to every worker in turn, under load: health says so first, running answers finish there or move, none fails.

One round restarts all verifiers and drafters, one after the other, each when the one before is connected again.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.failing import Setup, Stream, arguments, fresh, percentile, same, serving, undisturbed, until
from benchmarks.row import Row, note
from deploy.processes import LocalCell
from dspark.client import AsyncClient

STREAMS = 8
HEALTH_S = 0.1
SERVICES = {"verify": "dspark.wire.v1.Verify", "draft": "dspark.wire.v1.Draft"}


def main(argv: list[str] | None = None) -> int:
    parser = arguments("rolling_restart", __doc__)
    parser.add_argument("--restarts", type=int, default=8, help="of workers in turn, verifiers and drafters")
    parser.add_argument("--tokens", type=int, default=300)
    args = parser.parse_args(argv)
    setup = Setup.of(args)
    wave = setup.streams(STREAMS, args.tokens)
    grace = {"grace_s": 4.0}
    with setup.cell(verifiers=2, drafters=2, coordinator={"max_handovers": 0}, verify=grace, draft=grace) as cell:
        calm = asyncio.run(undisturbed(cell, wave))
        roll = Roll(cell, wave)
        asyncio.run(roll.run(args.restarts))
    ended = [stream for each in roll.waves for stream in each]
    good = sum(same(each, calm) for each in roll.waves)
    flip_s = percentile(roll.flips, 1.0)
    value: dict[str, object] = {
        "restarts": args.restarts,
        "requests": len(ended),
        "same_ids": good,
        "errors": sorted({stream.error for stream in ended if stream.error}),
        "longest_pause_s": round(max(gap for stream in ended for gap in stream.gaps), 2),
        "not_serving_after_s": round(flip_s, 3),
        "gone_after_s": round(percentile(roll.gone, 1.0), 2),
        "killed": roll.killed,
        "pair": setup.name,
    }
    bar = f"0 failed with no loss allowed (max_handovers 0), the same ids, NOT_SERVING within {HEALTH_S:g} s of SIGTERM"
    holds = good == len(ended) and flip_s <= HEALTH_S + 0.1 and not roll.killed
    return Row(13, "a rolling restart fails nobody", value, bar, holds).show(as_json=args.json)


class Roll:
    """A cell whose workers are restarted."""

    def __init__(self, cell: LocalCell, wave: list[Stream]) -> None:
        self._cell, self._wave = cell, wave
        self.waves: list[list[Stream]] = []
        self.flips: list[float] = []  # seconds from SIGTERM to NOT_SERVING
        self.gone: list[float] = []  # to the end of the process
        self.killed = 0

    async def run(self, restarts: int) -> None:
        over = asyncio.Event()

        async def keep_asking(client: AsyncClient, wave: list[Stream]) -> None:
            while not over.is_set():
                self.waves.append(mine := fresh(wave))
                await asyncio.gather(*(stream.run(client) for stream in mine))

        async with AsyncClient(self._cell.endpoint) as client:
            asking = asyncio.create_task(keep_asking(client, self._wave))
            names = [name for name in self._cell.children if not name.startswith("coordinator/")]
            for number, name in zip(range(restarts), itertools.cycle(names), strict=False):
                await asyncio.sleep(0.5)
                await self._restart(name)
                note(f"{number + 1} restarts, {len(self.waves)} waves")
            over.set()
            await asking

    async def _restart(self, name: str) -> None:
        child = self._cell.children[name]
        async with grpc.aio.insecure_channel(child.endpoint) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            await self._healthy(stub, name)
            told = time.monotonic()
            self._cell.kill(name, signal.SIGTERM)
            await self._flipped(stub, name)
            self.flips.append(time.monotonic() - told)
        code = await asyncio.to_thread(child.process.wait, 30.0)
        self.killed += code != 0
        self.gone.append(time.monotonic() - told)
        await asyncio.to_thread(self._cell.restart, name)
        await until(lambda: len(serving(self._cell)) == len(self._cell.children))

    async def _flipped(self, stub: health_pb2_grpc.HealthStub, name: str) -> None:
        while True:
            if not await self._healthy(stub, name):
                return
            await asyncio.sleep(0.005)

    async def _healthy(self, stub: health_pb2_grpc.HealthStub, name: str) -> bool:
        message = health_pb2.HealthCheckRequest(service=SERVICES[name.partition("/")[0]])
        try:
            said = await stub.Check(message, timeout=2.0)
        except grpc.aio.AioRpcError:
            return False
        return bool(said.status == health_pb2.HealthCheckResponse.SERVING)


if __name__ == "__main__":
    sys.exit(main())
