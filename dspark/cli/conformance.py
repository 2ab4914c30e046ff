"""`dspark conformance DIR`: checks that this installation reproduces a folder of reference cases.

DIR holds targets beside drafters; a drafter folder may hold `block_cases.safetensors`,
`loss_case.safetensors` and `decode_cases.json`. Every case counts one. Cases of families that are
not supported count as skipped, by name; anything that is broken counts as failed.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dspark.errors import CheckpointError, DsparkError, UnsupportedFamily

OUTCOMES = ("passed", "failed", "skipped")


@dataclasses.dataclass
class FileResult:
    """The results of one case file."""

    file: str  # relative to DIR
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)

    def line(self) -> str:
        state = "FAIL" if self.failed else "skip" if self.skipped else "ok  "
        counts = [f"{count} {what}" for what in OUTCOMES if (count := getattr(self, what))]
        tail = f": {self.problems[0]}" if self.problems else ""
        return f"{state} {self.file} ({', '.join(counts) or 'no cases'}){tail}"


def add_commands(commands: Any) -> None:
    """Adds `conformance`."""
    parser = commands.add_parser(
        "conformance",
        help="check a folder of reference checkpoints and outputs",
        description="Runs every case found in DIR, prints one line per case file, exits 1 if any "
        "failed.",
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="targets beside drafters")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.set_defaults(run=lambda args: run(args.directory, args.json))


def run(directory: Path, as_json: bool = False) -> int:
    """Checks all folders and prints the results; 0 only if a case passed and none failed."""
    import structlog

    structlog.configure(  # stdout is for the results
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    results: list[FileResult] = []
    for result in _results(directory):
        results.append(result)
        if not as_json:
            print(result.line(), flush=True)
    passed, failed, skipped = (sum(getattr(r, name) for r in results) for name in OUTCOMES)
    if as_json:
        files = [dataclasses.asdict(result) for result in results]
        print(json.dumps({"passed": passed, "failed": failed, "skipped": skipped, "files": files}))
    else:
        if not results:
            print(f"no case files in {directory} or its folders")
        if skipped and not passed and not failed:
            print(f"nothing in {directory} could be checked: every case was skipped")
        print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if passed and not failed else 1


def _results(directory: Path) -> Iterator[FileResult]:
    """Checks the case files of DIR itself and of its folders, in name order. One that is broken, or
    whose folder is, fails all of its cases; the other files still count."""
    from dspark.cli.conformance_cases import KINDS, problems
    from dspark.cli.conformance_served import load_pair

    if not directory.is_dir():
        raise CheckpointError(f"{directory}: not a folder")
    load = functools.lru_cache(maxsize=1)(load_pair)  # once for the files of a folder
    around = [directory, *sorted(path for path in directory.iterdir() if path.is_dir())]
    for folder, (name, (read, compute)) in itertools.product(around, KINDS.items()):
        if not (folder / name).is_file():
            continue
        result = FileResult(str((folder / name).relative_to(directory)))
        cases: Sequence[Any] = ()
        pair = None
        try:
            cases = read(folder / name)
            pair = load(folder)
            told = enumerate(problems(cases, compute(cases, pair)))
            result.problems = [f"case {number}: {each}" for number, each in told if each]
            result.failed = len(result.problems)
            result.passed = len(cases) - result.failed
        except Exception as error:  # of any type, for a strange file
            unsupported = pair is None and isinstance(error, UnsupportedFamily)
            setattr(result, "skipped" if unsupported else "failed", len(cases) or 1)
            ours = isinstance(error, DsparkError)
            result.problems = [str(error) if ours else f"{type(error).__name__}: {error}"]
        yield result
