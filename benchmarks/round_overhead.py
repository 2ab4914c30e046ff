"""What a round takes beside its two passes (row B5), and how busy two cohorts keep a verifier.

Synthetic workers in processes of their own: a verification takes 15 ms and a draft 2 ms, whatever is in them, so what
is left of a round is hops, messages and the coordinator. Temperature 1, 64 entries of q per slot, whole blocks. The
lane runs in this process, without client streams (`bare_lane`).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from dataclasses import dataclass

from benchmarks import two_hops
from benchmarks.bare_lane import quiet, running_lane
from benchmarks.row import Row, note
from benchmarks.synthetic_cell import FLAT, SyntheticWorkers
from coordinator.lanes.conduct import Conduct

VERIFY_S, DRAFT_S = 0.015, 0.002  # of FLAT
MOST_ONE, MOST_MANY, LEAST_BUSY = 0.06, 0.12, 0.93
MANY = 64


@dataclass(frozen=True, slots=True)
class OverheadMedians:
    """Medians over windows."""

    round_ms: float
    overhead: float  # share of a round
    busy: float  # share of time that the verifier computes


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.round_overhead", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON row per statement")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter windows")
    parser.add_argument(
        "--two-hops", action="store_true", help="rounds between verifier and drafter, beside bare streams"
    )
    parser.add_argument("--verify-ms", type=float, default=1e3 * VERIFY_S, help="of a pass, with --two-hops")
    parser.add_argument("--draft-ms", type=float, default=1e3 * DRAFT_S, help="of a pass, with --two-hops")
    args = parser.parse_args(argv)
    quiet()
    if args.two_hops:
        repeats, seconds = (3, 1.5) if args.quick else (5, 3.0)
        made = two_hops.rows(args.verify_ms / 1e3, args.draft_ms / 1e3, repeats, seconds)
        return max(row.show(as_json=args.json) for row in made)
    windows, seconds = (3, 1.5) if args.quick else (7, 3.0)
    with SyntheticWorkers(FLAT, room=4 * MANY) as workers:
        one = asyncio.run(_measure(workers, 1, 1, windows, seconds))
        many = asyncio.run(_measure(workers, MANY, 1, windows, seconds))
        two = asyncio.run(_measure(workers, MANY, 2, windows, seconds))
    base = f"of a round beside T_v {1e3 * VERIFY_S:g} ms and T_d {1e3 * DRAFT_S:g} ms"
    rows = (
        _row("B5 one", "round overhead, 1 sequence", one, one.overhead <= MOST_ONE, f"at most {MOST_ONE:.0%} {base}"),
        _row(
            "B5 many",
            f"round overhead, {MANY} sequences",
            many,
            many.overhead <= MOST_MANY,
            f"at most {MOST_MANY:.0%} {base}",
        ),
        _row(
            "B5 busy",
            f"verifier busy share, two cohorts, {MANY} sequences (one cohort: {many.busy:.1%})",
            two,
            two.busy >= LEAST_BUSY,
            f"at least {LEAST_BUSY:.0%}",
        ),
    )
    return max(row.show(as_json=args.json) for row in rows)


def _row(number: str, name: str, measured: OverheadMedians, holds: bool, bar: str) -> Row:
    value = {
        "round_ms": round(measured.round_ms, 2),
        "overhead": round(measured.overhead, 4),
        "verifier_busy": round(measured.busy, 4),
    }
    return Row(number, name, value, bar, holds)


async def _measure(
    workers: SyntheticWorkers, sequences: int, cohorts: int, windows: int, seconds: float
) -> OverheadMedians:
    conduct = Conduct(bypass=False, cohorts=cohorts)
    async with running_lane(workers, "adaptive", sequences, conduct) as (_, metrics):
        clock, steps = asyncio.get_running_loop(), []
        for _ in range(windows):
            before, began = metrics.value("cohorts_total"), clock.time()
            await asyncio.sleep(seconds)
            steps.append((clock.time() - began) / (metrics.value("cohorts_total") - before))
    step_s = statistics.median(steps)  # from one verification to the next
    round_s = cohorts * step_s
    note(f"{sequences} sequences, {cohorts} cohorts: {[round(1e3 * each, 2) for each in steps]} ms a step")
    return OverheadMedians(1e3 * round_s, (round_s - VERIFY_S - DRAFT_S) / round_s, VERIFY_S / step_s)


if __name__ == "__main__":
    sys.exit(main())
