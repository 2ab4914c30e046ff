"""How far a request and a feature row travel through the code: `PYTHONPATH=.:tests python -m
tests.walk`.

A cell of synthetic workers runs in one thread and in simulated time, so the figures are the same in
every run. Counted are calls of functions of the project's own rooms, the files they are in, and
stays: how often the file changes, by a call or by a return.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from faults.simulated import SimulatedCell, simulate

ROOT = Path(__file__).parents[1]
ROOMS = ("coordinator", "dspark", "verify_service", "draft_service")
NAMED = str(ROOT) + "/"


def file_of(frame: FrameType | None) -> str:
    """Of ours, from the root; empty for anybody else's, and for generated code."""
    if frame is None or not frame.f_code.co_filename.startswith(NAMED):
        return ""
    name = frame.f_code.co_filename.removeprefix(NAMED)
    ours = (
        name.partition("/")[0] in ROOMS
        and "_pb2" not in name
        and not name.startswith("coordinator/simulation/")
    )
    return name if ours else ""


@dataclass
class Walk:
    """From one call to another. rooms: those that count; begins, ends: of a call, by file and
    function."""

    begins: Callable[[str, str], bool]
    ends: Callable[[str, str], bool]
    rooms: tuple[str, ...] = ROOMS
    calls: int = 0
    stays: int = 0
    files: list[str] = field(default_factory=list)
    _at: str = ""
    _runs: bool = False
    over: bool = False

    def saw(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return") or self.over:
            return
        name, function = file_of(frame), frame.f_code.co_name
        if event == "call" and name and not self._runs:
            self._runs = self.begins(name, function)
        if not self._runs:
            return
        if event == "return":
            self._enter(file_of(frame.f_back))
            return
        if name.partition("/")[0] in self.rooms:
            self.calls += 1
            self._enter(name)
        self.over = bool(name) and self.ends(name, function)

    def _enter(self, name: str) -> None:
        if name and name != self._at and name.partition("/")[0] in self.rooms:
            self._at, self.stays = name, self.stays + 1
            if name not in self.files:
                self.files.append(name)

    def told(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "files": len(self.files),
            "stays": self.stays,
            "walked": self.files,
        }


GENERATE = ("coordinator/reception/service.py", "Generate")


def walk(
    begins: Callable[[str, str], bool], ends: Callable[[str, str], bool], *rooms: str, warm: int = 1
) -> Walk:
    """What the walk of one answer was, after as many others."""
    made = Walk(begins, ends, rooms or ROOMS)

    async def story(cell: SimulatedCell) -> None:
        for _ in range(warm):
            await cell.ask([5, 9, 17], max_tokens=12, policy="fixed:3")
        asking = asyncio.get_running_loop().create_task(
            cell.ask([6, 9, 17], max_tokens=12, policy="fixed:3")
        )
        sys.setprofile(made.saw)
        try:
            await asking
        finally:
            sys.setprofile(None)

    simulate(story, synthetic=True, coordinator={"warm_up_s": 0.0})
    assert made.over, "it never came"
    return made


def submitted() -> Walk:
    """A request, from Generate until it stands in line."""

    def ends(name: str, function: str) -> bool:
        return name.startswith("coordinator/queue/") and function == "submit"

    return walk(lambda *call: call == GENERATE, ends, "coordinator")


def first_token() -> Walk:
    """A request, from Generate until its first token is written."""

    def ends(name: str, function: str) -> bool:
        return name.startswith("coordinator/reception/") and function == "write_parts"

    return walk(lambda *call: call == GENERATE, ends, "coordinator")


def feature_row() -> Walk:
    """The rows of a round, from the end of its pass at the verifier until the drafter has them in
    its context."""

    def begins(name: str, function: str) -> bool:
        return name.startswith("verify_service/") and function == "commit"

    def ends(name: str, function: str) -> bool:
        return name.startswith("draft_service/") and function == "add"

    return walk(begins, ends, "verify_service", "draft_service", "dspark")


def next_draft() -> Walk:
    """A round, from the end of its pass at the verifier until the drafter begins the next one."""

    def begins(name: str, function: str) -> bool:
        return name.startswith("verify_service/") and function == "commit"

    def ends(name: str, function: str) -> bool:
        return name.startswith("draft_service/") and function == "timed_draft"

    return walk(begins, ends)


WALKS = (submitted, first_token, feature_row, next_draft)


def main() -> None:
    for made in WALKS:
        print(json.dumps({"walk": made.__name__, **made().told()}))


if __name__ == "__main__":
    main()
