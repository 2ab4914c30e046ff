"""What parts bring, by doing without them; tau and kernels with both engines in this process.

python -m benchmarks.ablations tau      # accepted lengths: entries of q, rule, rows
python -m benchmarks.ablations kernels  # tokens a second: each CPU kernel, `torch.compile`
python -m benchmarks.ablations threads  # tokens a second: one thread a worker, or more
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.ablations import kernels, tau, threads
from benchmarks.pair import add_arguments, chosen
from benchmarks.row import Program, only_rows


def main(argv: list[str] | None = None) -> int:
    parser = Program("ablations", __doc__)
    add = parser.add_argument
    add("what", choices=["tau", "kernels", "threads"])
    add_arguments(parser)
    add("--table", type=Path, help="the table as JSON; kernels are added to it")
    add("--quick", action="store_true", help=f"of tau: {tau.QUICK_PROMPTS} prompts a domain")
    add("--kernel", choices=kernels.KERNELS, action="append", help="only this; may be said again")
    longest = kernels.LONGEST_PROMPT
    add("--context", type=int, default=longest, help="of kernels: a prompt's tokens")
    add("--repetitions", type=int, default=4, help="of kernels: answers a sequence")
    args = parser.parse_args(argv)
    only_rows()
    pair = chosen(args)
    if args.what == "tau":
        row = tau.row(pair, quick=args.quick, file=args.table)
    elif args.what == "threads":
        row = threads.row(pair)
    else:
        row = kernels.row(pair, args.kernel, args.context, args.repetitions, args.table)
    return row.show(as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
