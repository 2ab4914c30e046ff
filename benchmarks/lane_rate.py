"""Committed tokens per second of processor time of the process that runs a lane (B6).

The lane of `bare_lane`, in this process, before two synthetic workers in theirs. Beside it, in the same run, what is
left without drafts (policy `off`).
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import statistics
import sys
import time
from pathlib import Path

from benchmarks.bare_lane import quiet, running_lane
from benchmarks.row import Row, note
from benchmarks.synthetic_cell import FLAT, SyntheticWorkers

WITH_DRAFTS, PLAIN = 100_000.0, 60_000.0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lane_rate", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON row")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter measurements")
    parser.add_argument("--sequences", type=int, default=256, help="in rounds at one time")
    parser.add_argument("--policy", default="adaptive", help="of all requests")
    parser.add_argument("--profile", type=Path, help="write a cProfile of the measured stretch here")
    args = parser.parse_args(argv)
    quiet()
    windows, seconds = (3, 1.5) if args.quick else (7, 3.0)
    value: dict[str, object] = {"sequences": args.sequences}
    rate: dict[str, int] = {}
    with SyntheticWorkers(FLAT, room=2 * args.sequences) as workers:
        for policy in (args.policy, "off"):
            profile = args.profile if policy != "off" else None
            rates, per_round = asyncio.run(_measure(workers, policy, args, windows, seconds, profile))
            rate[policy] = round(statistics.median(rates))
            note(f"{policy}: {[round(rate) for rate in rates]} tokens per CPU second, {per_round:.2f} tokens a round")
            if policy != "off":
                value["tokens_per_round"] = round(per_round, 2)
    bar = f"committed tokens per CPU second of the lane process, at least {WITH_DRAFTS:.0f}; {PLAIN:.0f} plain"
    holds = rate[args.policy] >= WITH_DRAFTS and rate["off"] >= PLAIN
    return Row("B6", "lane rate", value | rate, bar, holds).show(as_json=args.json)


async def _measure(
    workers: SyntheticWorkers,
    policy: str,
    args: argparse.Namespace,
    windows: int,
    seconds: float,
    profile_to: Path | None,
) -> tuple[list[float], float]:
    """Tokens per CPU second of every window, and tokens a round over all of them."""
    async with running_lane(workers, policy, args.sequences) as (lane, _):
        rates, rounds, tokens = [], lane.rounds, lane.committed_by_rounds
        profile = cProfile.Profile()
        if profile_to is not None:
            profile.enable()
        for _ in range(windows):
            before, began = lane.committed_by_rounds, time.process_time()
            await asyncio.sleep(seconds)
            rates.append((lane.committed_by_rounds - before) / (time.process_time() - began))
        if profile_to is not None:
            profile.disable()
            profile.dump_stats(profile_to)
        return rates, (lane.committed_by_rounds - tokens) / (lane.rounds - rounds)


if __name__ == "__main__":
    sys.exit(main())
