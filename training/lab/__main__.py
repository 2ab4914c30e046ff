"""`python -m training.lab run|time|report|list`: see the package's docstring."""

import argparse
from pathlib import Path

from training.lab.plan import plan

RESULTS = Path("benchmarks/results")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="training.lab", description="One small target, every family of drafter.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="make the runs that are missing")
    timing = commands.add_parser("time", help="measure the draft time of every shape in the plan")
    report = commands.add_parser("report", help="write tables, plots and raw figures from the finished runs")
    commands.add_parser("list", help="print the names of the plan's runs")
    for command in (run, timing, report):
        command.add_argument("--out", type=Path, required=True, help="folder of the lab")
    run.add_argument("--only", nargs="*", default=[], metavar="PATTERN", help="runs whose names match, like 'dspark-*'")
    run.add_argument("--prompts", type=Path, default=Path("benchmarks/prompts"), help="held-out prompt files")
    run.add_argument("--start", type=Path, metavar="TARGET", help="begin with this target and its published runs")
    run.add_argument("--known", type=Path, default=RESULTS / "lab_runs.json", help="published runs, with --start")
    report.add_argument("--page", type=Path, default=Path("docs/results.md"), help="page whose tables are renewed")
    report.add_argument("--raw", type=Path, default=RESULTS, help="where lab*.json go")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    given = arguments(argv)
    if given.command == "list":
        print("\n".join(run.name for run in plan()))
        return
    if given.command == "report":
        from training.lab import report

        report.write(given.out, given.page, given.raw)
        return
    import torch

    torch.set_num_threads(1)
    if given.command == "time":
        from training.lab import timing

        for kind, row in timing.measure(given.out).items():
            print(kind, "  ".join(f"{streams} x {ms:.2f} ms" for streams, ms in row.items()))
        return
    from training.lab import run, shipped

    try:
        if given.start is not None:
            print(f"{shipped.lay_out(given.out, given.start, given.known, plan())} runs are published")
        run.finish(given.out, run.chosen(plan(), given.only), given.prompts)
    except KeyboardInterrupt:
        raise SystemExit("stopped; the same command goes on from here") from None


if __name__ == "__main__":
    main()
