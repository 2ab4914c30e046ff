"""How far a request and a feature row travel through the code: no further than they do today.

A cell of synthetic workers runs in one thread and in simulated time, so the figures are the same in
every run. Counted are calls of functions of the project's own rooms, the files they are in, and
stays: how often the file changes, by a call or by a return.
"""

import asyncio
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.faults.simulated import SimulatedCell, simulate

ROOMS = ("coordinator", "dspark", "verify_service", "draft_service")
NAMED = f"{Path(__file__).parents[1]}/"

Call = tuple[str, str]  # how the name of its file begins, and its function


def file_of(frame: FrameType | None) -> str:
    """Of ours, from the root; empty for anybody else's, and for generated code."""
    if frame is None or not frame.f_code.co_filename.startswith(NAMED):
        return ""
    name = frame.f_code.co_filename.removeprefix(NAMED)
    others = "_pb2" in name or name.startswith("coordinator/simulation/")
    return name if name.partition("/")[0] in ROOMS and not others else ""


@dataclass
class Walk:
    """From one call to another. rooms: those that count."""

    begins: Call
    ends: Call
    rooms: tuple[str, ...]
    calls: int = 0
    stays: int = 0
    files: list[str] = field(default_factory=list)
    over: bool = False
    _at: str = ""
    _runs: bool = False

    def saw(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return") or self.over:
            return
        name, function = file_of(frame), frame.f_code.co_name
        if event == "call":
            self._runs |= _is(self.begins, name, function)
        if not self._runs:
            return
        if event == "return":
            self._enter(file_of(frame.f_back))
            return
        if name.partition("/")[0] in self.rooms:
            self.calls += 1
            self._enter(name)
        self.over = _is(self.ends, name, function)

    def _enter(self, name: str) -> None:
        if name and name != self._at and name.partition("/")[0] in self.rooms:
            self._at, self.stays = name, self.stays + 1
            if name not in self.files:
                self.files.append(name)


def _is(call: Call, name: str, function: str) -> bool:
    return name.startswith(call[0]) and function == call[1]


GENERATE = ("coordinator/reception/service.py", "Generate")
WALKS = {
    "a request, from Generate until it stands in line": (
        Walk(GENERATE, ("coordinator/queue/", "submit"), ("coordinator",)),
        (64, 14, 48),
    ),
    "a request, from Generate until its first token is written": (
        Walk(GENERATE, ("coordinator/reception/", "write_parts"), ("coordinator",)),
        (244, 26, 240),
    ),
    "the rows of a round, from the end of its pass until the drafter has them in its context": (
        Walk(
            ("verify_service/", "commit"),
            ("draft_service/", "add"),
            ("verify_service", "draft_service", "dspark"),
        ),
        (218, 42, 180),
    ),
}


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_stays_as_short_as_it_is(name: str) -> None:
    """most: calls, files and stays, with a tenth of room."""
    walk, most = WALKS[name]

    async def story(cell: SimulatedCell) -> None:
        await cell.ask([5, 9, 17], max_tokens=12, policy="fixed:3")  # warm
        asking = asyncio.create_task(cell.ask([6, 9, 17], max_tokens=12, policy="fixed:3"))
        sys.setprofile(walk.saw)
        try:
            await asking
        finally:
            sys.setprofile(None)

    simulate(story, synthetic=True, coordinator={"warm_up_s": 0.0})
    assert walk.over, "it never came"
    found = (walk.calls, len(walk.files), walk.stays)
    assert all(one <= limit for one, limit in zip(found, most, strict=True)), (found, walk.files)
