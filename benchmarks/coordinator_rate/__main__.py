"""Tokens for a second of processor time (B6), before synthetic workers that only take time.

python -m benchmarks.coordinator_rate lane         # of the process that runs a lane
python -m benchmarks.coordinator_rate front-end    # of a front end of its own, and the streams that one holds
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.coordinator_rate import front_end, lane


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.coordinator_rate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=["lane", "front-end"])
    parser.add_argument("--json", action="store_true", help="print one JSON row per part")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter measurements")
    parser.add_argument("--sequences", type=int, default=256, help="of a lane: in rounds at one time")
    parser.add_argument("--policy", default="adaptive", help="of a lane: of all requests")
    parser.add_argument("--profile", type=Path, help="of a lane: write a cProfile of the measured stretch here")
    parser.add_argument("--streams", type=int, default=128, help="of a front end: clients while its rate is measured")
    parser.add_argument("--held", type=int, default=2048, help="of a front end: clients at once in the second part")
    args = parser.parse_args(argv)
    if args.what == "lane":
        row = lane.row(quick=args.quick, sequences=args.sequences, policy=args.policy, profile=args.profile)
        return row.show(as_json=args.json)
    rows = front_end.rows(quick=args.quick, streams=args.streams, held=args.held)
    return max([row.show(as_json=args.json) for row in rows])


if __name__ == "__main__":
    sys.exit(main())
