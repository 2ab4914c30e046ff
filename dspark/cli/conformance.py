"""`dspark conformance DIR`: checks that this installation reproduces a folder of reference cases.

DIR holds targets beside drafters; a drafter folder may hold `block_cases.safetensors`,
`loss_case.safetensors` and `decode_cases.json`. Every case counts one. Cases of families that are
not supported count as skipped, by name; anything that is broken counts as failed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import sys
from pathlib import Path
from typing import Any

from dspark.errors import CheckpointError, DsparkError, UnsupportedFamily

BLOCK_FILE = "block_cases.safetensors"
LOSS_FILE = "loss_case.safetensors"
DECODE_FILE = "decode_cases.json"
CASE_FILES = (BLOCK_FILE, LOSS_FILE, DECODE_FILE)
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

    def count(self, problems: list[str | None]) -> None:
        """Adds one case per entry; None is a case that passed."""
        for number, problem in enumerate(problems):
            if problem is None:
                self.passed += 1
            else:
                self.failed += 1
                self.problems.append(f"case {number}: {problem}")

    def broken(self, error: Exception, cases: int, *, skip: bool = False) -> None:
        """Counts all cases of the file as failed, or skipped: `error` kept them from being run."""
        if skip:
            self.skipped += cases
        else:
            self.failed += cases
        self.problems.append(
            str(error) if isinstance(error, DsparkError) else f"{type(error).__name__}: {error}"
        )


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
    for folder in _folders(directory):
        for result in check_folder(folder, directory):
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


def check_folder(folder: Path, root: Path) -> list[FileResult]:
    """Checks all case files of one drafter folder."""
    from dspark.cli.conformance_decode import decode_cases
    from dspark.cli.conformance_model import block_cases, loss_case
    from dspark.model.checkpoint import load_drafter, load_target
    from dspark.model.config_file import read_drafter_config

    checks = {BLOCK_FILE: block_cases, LOSS_FILE: loss_case, DECODE_FILE: decode_cases}
    results = {
        name: FileResult(str((folder / name).relative_to(root)))
        for name in checks
        if (folder / name).is_file()
    }
    try:
        beside = _target_for(folder, read_drafter_config(folder))
        drafter = load_drafter(folder, target=beside)
        target = load_target(beside) if beside is not None else None
    except Exception as error:  # in a drafter or a target; the other folders still count
        for name, result in results.items():
            result.broken(
                error, _count_cases(folder / name), skip=isinstance(error, UnsupportedFamily)
            )
        return list(results.values())
    for name, result in results.items():
        try:
            result.count(checks[name](folder / name, drafter, target))
        except Exception as error:  # a case file may be broken in any way; the others still count
            result.broken(error, _count_cases(folder / name))
    return list(results.values())


def _folders(directory: Path) -> list[Path]:
    """Folders with case files: DIR itself or its children, in name order."""
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: not a folder")
    around = [directory, *sorted(path for path in directory.iterdir() if path.is_dir())]
    return [folder for folder in around if any((folder / name).is_file() for name in CASE_FILES)]


def _target_for(folder: Path, config: Any) -> Path | None:
    """The target beside a drafter that has its vocabulary, width, depth and kind of layers; None if
    there is none."""
    from dspark.model.config_keys import CONFIG_NAME, read_json

    wanted = {name: getattr(config, name) for name in ("vocab_size", "hidden_size", "model_type")}
    wanted["num_hidden_layers"] = config.num_target_layers
    fitting = []
    for other in sorted(path for path in folder.parent.iterdir() if path.is_dir()):
        with contextlib.suppress(CheckpointError):
            raw = read_json(other / CONFIG_NAME)
            if "target_layer_ids" not in raw and wanted.items() <= raw.items():
                fitting.append(other)
    if len(fitting) > 1:
        raise CheckpointError(
            f"{folder}: several targets fit: {', '.join(path.name for path in fitting)}"
        )
    return fitting[0] if fitting else None


def _count_cases(file: Path) -> int:
    """Number of cases in a file, without running them; 1 if it cannot be read."""
    from dspark.model.weights_file import tensor_names

    try:
        if file.name == DECODE_FILE:
            return max(len(json.loads(file.read_bytes())), 1)
        if file.name == BLOCK_FILE:
            return max(len({name.partition(".")[0] for name in tensor_names(file)}), 1)
    except (OSError, ValueError, TypeError, RecursionError, CheckpointError):
        pass
    return 1
