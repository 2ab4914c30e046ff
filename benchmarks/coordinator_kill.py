"""SIGKILL of the coordinator, again and again, under running streams: clients resume and get the same ids.

The journal is on; every kill comes at a moment drawn from `--seed`, the coordinator is started again at its address,
and the client library goes on with what each stream lacks. Workers free what the dead one held.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.failing import Setup, Stream, arguments, fresh, percentile, same, undisturbed, until
from benchmarks.row import Row, note
from deploy.processes import LocalCell
from dspark.client import AsyncClient

STREAMS = 8
BAR_S = 5.0
BAR = f"every stream ends with the same ids, the next token within {BAR_S:g} s of the kill"
RESUME_S = 60.0


def main(argv: list[str] | None = None) -> int:
    parser = arguments("coordinator_kill", __doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=400, help="length of each answer")
    parser.add_argument("--sync", default="interval", help="journal_sync of the coordinator")
    args = parser.parse_args(argv)
    value, holds = measure(Setup.of(args), kills=args.kills, tokens=args.tokens, sync=args.sync, seed=args.seed)
    return Row(21, "a killed coordinator costs a pause", value, BAR, holds).show(as_json=args.json)


def measure(
    setup: Setup, *, kills: int, tokens: int = 400, sync: str = "interval", seed: int = 1
) -> tuple[dict[str, object], bool]:
    """What came of it, and whether it is as good as the bar."""
    wave = setup.streams(STREAMS, tokens)
    with tempfile.TemporaryDirectory(prefix="dspark-journal-") as name:
        journal = {"journal": name, "journal_sync": sync, "journal_segment_mb": 1}
        with setup.cell(coordinator=journal) as cell:
            note(f"{STREAMS} streams of {tokens} tokens, undisturbed")
            calm = asyncio.run(undisturbed(cell, wave))
            waves, back = asyncio.run(_storm(cell, wave, kills, random.Random(seed)))
        size = sum(path.stat().st_size for path in Path(name).glob("journal-*"))
    ended = [stream for each in waves for stream in each]
    good = sum(same(each, calm) for each in waves)
    back_s = percentile(back, 0.99)
    value: dict[str, object] = {
        "kills": len(back),
        "streams": len(ended),
        "same_ids": good,
        "resumed": sum(stream.resumed > 0 for stream in ended),
        "errors": sorted({stream.error for stream in ended if stream.error}),
        "back_p50_s": round(percentile(back, 0.5), 2),
        "back_p99_s": round(back_s, 2),
        "journal_bytes": size,
        "journal_sync": sync,
        "pair": setup.name,
    }
    return value, good == len(ended) and len(back) == kills and back_s <= BAR_S


async def _hit(waves: list[list[Stream]]) -> list[Stream]:
    """Streams in the middle of their answers, as soon as there are any."""

    def hit() -> list[Stream]:
        return [stream for stream in waves[-1] if stream.times and not stream.finish]

    await until(lambda: bool(hit()))
    return hit()


async def _storm(
    cell: LocalCell, wave: list[Stream], kills: int, rng: random.Random
) -> tuple[list[list[Stream]], list[float]]:
    """Waves of streams, and seconds from each kill to the next token of the last stream that lived through it."""
    waves: list[list[Stream]] = []
    back: list[float] = []
    over = asyncio.Event()

    async def keep_asking(client: AsyncClient) -> None:
        while not over.is_set():
            waves.append(fresh(wave))
            await asyncio.gather(*(stream.run(client, resume_s=RESUME_S) for stream in waves[-1]))

    async with AsyncClient(cell.endpoint) as client:
        asking = asyncio.create_task(keep_asking(client))
        for number in range(kills):
            await asyncio.sleep(rng.uniform(0.1, 1.5))
            hit = await _hit(waves)
            killed = time.monotonic()
            await asyncio.to_thread(cell.kill, "coordinator/0")
            await asyncio.to_thread(cell.restart, "coordinator/0")
            while waiting := [one for one in hit if one.times[-1] <= killed and not (one.finish or one.error)]:
                await asyncio.sleep(0.02)
                if time.monotonic() > killed + RESUME_S:
                    raise SystemExit(f"{len(waiting)} streams did not come back")
            firsts = [min((at for at in one.times if at > killed), default=killed) for one in hit]
            back.append(max(firsts) - killed)
            if number % 10 == 9:
                note(f"{number + 1} kills, {len(waves)} waves")
        over.set()
        await asking
    return waves, back


if __name__ == "__main__":
    sys.exit(main())
