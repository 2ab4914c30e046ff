"""SIGSTOP: a verifier that hangs is let go and its sequences go on elsewhere; a drafter that hangs costs its drafts.

Each time a process is stopped under running streams; `verifier_s` is the silence of a stream that it held, until its
first token from elsewhere. Then the process goes on (its late words must change nothing) and is taken in again. In the
end every processor is kept busy for `--busy-s` seconds, and nobody may be let go for being slow.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request

from benchmarks.failing import Setup, Stream, arguments, fresh, percentile, same, serving, undisturbed, until
from benchmarks.row import Row, note
from deploy.head import free_ports
from deploy.processes import LocalCell
from dspark.client import AsyncClient

STREAMS = 6
BAR_S = 3.0
STOPPED_S = 6.0


def main(argv: list[str] | None = None) -> int:
    parser = arguments("hung_peer", __doc__)
    parser.add_argument("--stops", type=int, default=6, help="of verifiers and drafters in turn")
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument("--busy-s", type=float, default=20.0, help="seconds at full load; an hour: 3600")
    args = parser.parse_args(argv)
    setup = Setup.of(args)
    wave = setup.streams(STREAMS, args.tokens)
    (port,) = free_ports(1)
    patient = {"max_handovers": 1000, "flap_limit": 0, "metrics_port": port}
    with setup.cell(verifiers=2, drafters=2, coordinator=patient) as cell:
        calm = asyncio.run(undisturbed(cell, wave))
        storm = Storm(cell, wave, port)
        asyncio.run(storm.run(args.stops, random.Random(args.seed)))
        before = storm.losses()
        note(f"{args.busy_s:g} s at full load")
        asyncio.run(storm.busy(args.busy_s))
        false = storm.losses() - before
    ended = [stream for each in storm.waves for stream in each]
    good = sum(same(each, calm) for each in storm.waves)
    eject_s = percentile(storm.silences["verify"], 0.99)
    value: dict[str, object] = {
        "stops": args.stops,
        "streams": len(ended),
        "same_ids": good,
        "errors": sorted({stream.error for stream in ended if stream.error}),
        "verifier_p50_s": round(percentile(storm.silences["verify"], 0.5), 2),
        "verifier_p99_s": round(eject_s, 2),
        "drafter_p99_s": round(percentile(storm.silences["draft"], 0.99), 2),
        "let_go_under_load": false,
        "busy_s": args.busy_s,
        "pair": setup.name,
    }
    bar = f"p99 of the silence <= {BAR_S:g} s and a prefill, 0 let go under full load, the same ids"
    holds = good == len(ended) and eject_s <= BAR_S + 0.5 and not false
    return Row(5, "hung peers are let go, busy ones are not", value, bar, holds).show(as_json=args.json)


class Storm:
    """What is done to one cell."""

    def __init__(self, cell: LocalCell, wave: list[Stream], metrics_port: int) -> None:
        self._cell, self._wave, self._port = cell, wave, metrics_port
        self.waves: list[list[Stream]] = []
        self.silences: dict[str, list[float]] = {"verify": [], "draft": []}
        self._over = asyncio.Event()

    def losses(self) -> int:
        """Workers the coordinator has let go or lost."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=5) as reply:
            lines = reply.read().decode().splitlines()
        counts = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("dspark_worker_losses_total")]
        return round(sum(counts))

    async def run(self, stops: int, rng: random.Random) -> None:
        async with AsyncClient(self._cell.endpoint) as client:
            self._over = asyncio.Event()
            asking = asyncio.create_task(self._keep_asking(client))
            for number in range(stops):
                role = ("verify", "draft")[number % 2]
                await asyncio.sleep(rng.uniform(0.5, 1.5))
                await self._stop(client, role, f"{role}/{rng.randrange(2)}")
                note(f"{number + 1} stops")
            self._over.set()
            await asking

    async def busy(self, seconds: float) -> None:
        """Every processor has more to do than it can."""
        burners = await asyncio.to_thread(_burners)
        try:
            async with AsyncClient(self._cell.endpoint) as client:
                self._over = asyncio.Event()
                asking = asyncio.create_task(self._keep_asking(client))
                await asyncio.sleep(seconds)
                self._over.set()
                await asking
        finally:
            for burner in burners:
                burner.kill()

    async def _keep_asking(self, client: AsyncClient) -> None:
        while not self._over.is_set():
            self.waves.append(fresh(self._wave))
            await asyncio.gather(*(stream.run(client) for stream in self.waves[-1]))

    async def _stop(self, client: AsyncClient, role: str, name: str) -> None:
        held = await _held(client, name)
        at = time.monotonic()
        self._cell.kill(name, signal.SIGSTOP)
        await asyncio.sleep(STOPPED_S)
        self._cell.kill(name, signal.SIGCONT)
        await until(lambda: len(serving(self._cell)) == len(self._cell.children))
        ended = [stream for each in self.waves[-3:] for stream in each if stream.times]
        silences = [_silence(stream, at) for stream in ended if stream.times[0] <= at <= stream.times[-1]]
        if held:
            self.silences[role] += [max(silences, default=0.0)]


def _burners() -> list[subprocess.Popen[bytes]]:
    burn = [sys.executable, "-c", "while True: pass"]
    return [subprocess.Popen(burn) for _ in range(2 * (os.cpu_count() or 1))]


async def _held(client: AsyncClient, name: str) -> int:
    return sum(process.sequences for process in (await client.status()).processes if process.name == name)


def _silence(stream: Stream, at: float) -> float:
    """From a moment to the next token."""
    return min((when for when in stream.times if when > at), default=at) - at


if __name__ == "__main__":
    sys.exit(main())
