"""`dspark logs [POOL/N] [--request ID] [-f]`: shows the log lines of a cell's processes on this
machine, oldest first.

Every process writes JSON lines with its name under the Ray session's folder, so the lines of a
replica are found by its name, whichever process it was at the time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dspark.cli.options import natural
from dspark.errors import DsparkError

POLL_S = 0.3
FILES = "ray/session_latest/logs/worker-*.err"
_KNOWN = ("timestamp", "level", "event", "process", "role", "logger")


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "logs",
        help="show what processes wrote",
        description="Of one process (verify/0), of a pool (draft), or of all; lines of replaced "
        "processes included.",
    )
    add = parser.add_argument
    add("name", nargs="?", default="", metavar="POOL[/N]", help="verify/0, draft, controller")
    add("--request", metavar="ID", help="only lines about this request (a tenant's: TENANT/ID)")
    add("-f", "--follow", action="store_true", help="go on as lines are written")
    add("-n", "--lines", type=natural, default=200, help="the last N lines; 0: all")
    add("--json", action="store_true", help="lines as they were written")
    parser.set_defaults(run=_logs)


def _logs(args: argparse.Namespace) -> int:
    from dspark.client.cell import find_cell

    cell = find_cell()
    if not cell.ray_dir:
        raise DsparkError(
            f"this cell runs on the Ray cluster at {cell.ray_address}, which keeps the logs: "
            "`ray logs cluster 'worker-*.err'` on its head, or your collector of container logs"
        )
    tails = LogTail(Path(cell.ray_dir), args.name, args.request)
    lines = tails.new()
    if not lines and not args.follow:
        about = "" if args.request is None else f" about request {args.request!r}"
        raise DsparkError(
            f"no line of {args.name or 'any process'}{about}; there are lines of "
            f"{', '.join(sorted(tails.processes)) or 'nobody'}"
        )
    for line in lines[-args.lines :] if args.lines else lines:
        _show(line, raw=args.json)
    while args.follow:
        if not Path(cell.ray_dir).is_dir():
            raise DsparkError(f"{cell.ray_dir} is gone, and this cluster with it")
        time.sleep(POLL_S)
        for line in tails.new():
            _show(line, raw=args.json)
    return 0


class LogTail:
    """Reads the new lines of all log files of a session, also of those that appear later.

    name: a process or a pool; empty: all. request: only lines about the request of this id; None:
    all lines.
    """

    def __init__(self, folder: Path, name: str, request: str | None = None) -> None:
        self._folder, self._name, self._request = folder, name, request
        # sequence numbers of the request's answers, which workers log
        self._sequences: set[Any] = set()
        self.processes: set[str] = set()  # that wrote anything
        self._read: dict[Path, int] = {}  # bytes that were read, in whole lines

    def new(self) -> list[dict[str, Any]]:
        """Complete lines that were not read before, of the wanted processes and request; oldest
        first."""
        records = sorted(self._records(), key=lambda record: str(record.get("timestamp", "")))
        if self._request is not None:
            about = [record for record in records if record.get("request") == self._request]
            self._sequences.update(record["sequence"] for record in about if "sequence" in record)
        return [record for record in records if self._wanted(record)]

    def _records(self) -> Iterator[dict[str, Any]]:
        for path in sorted(self._folder.glob(FILES)):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                *whole, _ = file.read().split(b"\n")
            self._read[path] = self._read.get(path, 0) + sum(len(line) + 1 for line in whole)
            for line in whole:
                try:
                    record = json.loads(line)
                except ValueError:  # not ours: printed by Ray or a library
                    continue
                if isinstance(record, dict) and record.get("process"):
                    self.processes.add(str(record["process"]))
                    yield record

    def _wanted(self, record: dict[str, Any]) -> bool:
        process = str(record["process"])
        if self._name and process != self._name and not process.startswith(f"{self._name}/"):
            return False
        return (
            self._request is None
            or record.get("request") == self._request
            or record.get("sequence") in self._sequences
        )


def _show(record: dict[str, Any], *, raw: bool) -> None:
    print(json.dumps(record) if raw else readable(record), flush=True)


def readable(record: dict[str, Any]) -> str:
    """A log record as one line of text: time, process, event, and the other fields."""
    rest = " ".join(f"{key}={_value(value)}" for key, value in record.items() if key not in _KNOWN)
    level = str(record.get("level", "")).upper()
    mark = "" if level in ("", "INFO", "DEBUG") else f"{level} "
    return (
        f"{record.get('timestamp', '')} {record.get('process', ''):<14} "
        f"{mark}{record.get('event', '')} {rest}"
    ).rstrip()


def _value(value: Any) -> str:
    """Text as JSON, unless it is one printable word: what clients choose must neither control a
    terminal nor look like another line."""
    plain = isinstance(value, str) and value.isprintable() and " " not in value
    return value if plain else json.dumps(value)
