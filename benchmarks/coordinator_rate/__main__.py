"""Tokens per second of processor time (B6), before synthetic workers that only take time.

python -m benchmarks.coordinator_rate lane       # of the process that runs a lane
python -m benchmarks.coordinator_rate front-end  # of a front end, and the streams it holds
"""

from __future__ import annotations

import sys

from benchmarks.coordinator_rate import front_end, lane
from benchmarks.row import Program


def main(argv: list[str] | None = None) -> int:
    parser = Program("coordinator_rate", __doc__)
    parser.add_argument("what", choices=["lane", "front-end"])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter measurements")
    args = parser.parse_args(argv)
    rows = [lane.row(quick=args.quick)] if args.what == "lane" else front_end.rows(quick=args.quick)
    return max([row.show(as_json=args.json) for row in rows])


if __name__ == "__main__":
    sys.exit(main())
