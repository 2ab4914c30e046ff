"""SIGKILL of verifiers, again and again, under running streams: every stream ends with the ids of an undisturbed run.

Two verifiers or more; each kill hits one that serves, at a moment drawn from `--seed`, and the dead one is started
again at its address. Streams are asked for in waves, so that kills hit prefills, first and last tokens too. A stall is
the longest silence of a stream around a kill.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time

from benchmarks.failing import Setup, Stream, arguments, fresh, percentile, same, serving, undisturbed, until
from benchmarks.row import Row, note
from deploy.processes import LocalCell
from dspark.client import AsyncClient

STREAMS = 8
BAR_S = 1.0  # beside what a prefill takes
BAR = f"every stream ends with the same ids; p99 of the stalls is at most {BAR_S:g} s and a prefill"


def main(argv: list[str] | None = None) -> int:
    parser = arguments("verifier_kill", __doc__)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=400, help="length of each answer")
    parser.add_argument("--verifiers", type=int, default=2)
    args = parser.parse_args(argv)
    value, holds = measure(
        Setup.of(args), kills=args.kills, tokens=args.tokens, verifiers=args.verifiers, seed=args.seed
    )
    return Row(1, "a killed verifier costs a pause", value, BAR, holds).show(as_json=args.json)


def measure(
    setup: Setup, *, kills: int, tokens: int = 400, verifiers: int = 2, seed: int = 1
) -> tuple[dict[str, object], bool]:
    """What came of it, and whether it is as good as the bar."""
    wave = setup.streams(STREAMS, tokens)
    patient = {"max_handovers": 1000, "verifier_wait_s": 60, "flap_limit": 0}
    with setup.cell(verifiers=verifiers, drafters=1, coordinator=patient) as cell:
        note(f"{STREAMS} streams of {tokens} tokens, undisturbed")
        calm = asyncio.run(undisturbed(cell, wave))
        began = time.monotonic()
        outcome = asyncio.run(_storm(cell, wave, kills, random.Random(seed)))
        took = time.monotonic() - began
    ended = [stream for each in outcome.waves for stream in each]
    good = sum(same(each, calm) for each in outcome.waves)
    stalls = [_longest_since(stream, at) for at in outcome.kills for stream in ended if _lives(stream, at)]
    stall_s = percentile(stalls, 0.99)
    value: dict[str, object] = {
        "kills": len(outcome.kills),
        "streams": len(ended),
        "same_ids": good,
        "errors": sorted({stream.error for stream in ended if stream.error}),
        "hit": len(stalls),
        "stall_p50_s": round(percentile(stalls, 0.5), 3),
        "stall_p99_s": round(stall_s, 3),
        "seconds": round(took, 1),
        "pair": setup.name,
    }
    return value, good == len(ended) and len(outcome.kills) == kills and stall_s <= BAR_S + _prefill_s(calm)


class Outcome:
    """What a storm left."""

    def __init__(self) -> None:
        self.kills: list[float] = []
        self.waves: list[list[Stream]] = []


async def _storm(cell: LocalCell, wave: list[Stream], kills: int, rng: random.Random) -> Outcome:
    outcome, over = Outcome(), asyncio.Event()

    async def keep_asking(client: AsyncClient) -> None:
        while not over.is_set():
            outcome.waves.append(fresh(wave))
            await asyncio.gather(*(stream.run(client) for stream in outcome.waves[-1]))

    async with AsyncClient(cell.endpoint) as client:
        asking = asyncio.create_task(keep_asking(client))
        names = [name for name in cell.children if name.startswith("verify/")]
        for number in range(kills):
            await asyncio.sleep(rng.uniform(0.1, 1.5))
            victim = rng.choice(names)
            outcome.kills.append(time.monotonic())
            await asyncio.to_thread(cell.kill, victim)
            await asyncio.to_thread(cell.restart, victim)
            await until(lambda: len(serving(cell)) == len(cell.children))
            if number % 20 == 19:
                note(f"{number + 1} kills, {len(outcome.waves)} waves")
        over.set()
        await asking
    return outcome


def _lives(stream: Stream, at: float) -> bool:
    return bool(stream.times) and stream.times[0] <= at <= stream.times[-1]


def _longest_since(stream: Stream, at: float) -> float:
    """The silence a kill fell into."""
    before = max(when for when in stream.times if when <= at)
    return min((when for when in stream.times if when > at), default=before) - before


def _prefill_s(calm: list[Stream]) -> float:
    """A pause without kills: the longest one, as other prompts are taken in."""
    return max((gap for stream in calm for gap in stream.gaps), default=0.0)


if __name__ == "__main__":
    sys.exit(main())
