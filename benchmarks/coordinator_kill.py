"""SIGKILL of the coordinator, again and again, under running streams: clients resume and get the same ids.

The journal is on; every kill comes at a moment drawn from `--seed`, the coordinator is started again at its address,
and the client library goes on with what each stream lacks. Workers free what the dead one held.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time

from benchmarks.failing import Setup, Stream, arguments, folder, fresh, percentile, same, undisturbed
from benchmarks.row import Row, note
from deploy.processes import LocalCell
from dspark.client import AsyncClient

STREAMS = 8
BAR_S = 5.0
RESUME_S = 60.0


def main(argv: list[str] | None = None) -> int:
    parser = arguments("coordinator_kill", __doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=400, help="length of each answer")
    parser.add_argument("--sync", default="interval", help="journal_sync of the coordinator")
    args = parser.parse_args(argv)
    setup = Setup.of(args)
    wave = setup.streams(STREAMS, args.tokens)
    journal = folder("journal")
    with setup.cell(coordinator={"journal": journal, "journal_sync": args.sync, "journal_segment_mb": 1}) as cell:
        note(f"{STREAMS} streams of {args.tokens} tokens, undisturbed")
        calm = asyncio.run(undisturbed(cell, wave))
        waves, back = asyncio.run(_storm(cell, wave, args.kills, random.Random(args.seed)))
        size = sum(path.stat().st_size for path in journal.glob("journal-*"))
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
        "journal_sync": args.sync,
        "pair": "synthetic" if args.synthetic else str(setup.pair.target.name),
    }
    bar = f"every stream ends with the same ids, the next token within {BAR_S:g} s of the kill"
    holds = good == len(ended) and len(back) == args.kills and back_s <= BAR_S
    return Row(21, "a killed coordinator costs a pause", value, bar, holds).show(as_json=args.json)


async def _hit(waves: list[list[Stream]]) -> list[Stream]:
    """Streams in the middle of their answers, as soon as there are any."""
    while True:
        if hit := [stream for stream in waves[-1] if stream.times and not stream.finish]:
            return hit
        await asyncio.sleep(0.01)


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
