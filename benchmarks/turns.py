"""Measures contestants in turns on the same work, and keeps the figures.

A turn measures every contestant once; which one begins changes from turn to turn. A ratio is the
median over the turns of the ratio inside a turn, since a machine's speed varies by more than
contestants differ.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.row import note
from dspark.errors import InvalidRequest

ADAPTIVE = "adaptive"
BASELINES = ("off", *(f"fixed:{slots}" for slots in range(1, 8)))
# of the best baseline's median; noise of one turn stays well below what is left out here
HOPELESS = 0.87

Rate = Callable[[str, int], Awaitable[float]]  # policy, concurrency -> tokens a second


T = TypeVar("T")


def rotated(contestants: Sequence[T], turn: int) -> list[T]:
    """All contestants, from another one on in every turn."""
    first = turn % len(contestants)
    return [*contestants[first:], *contestants[:first]]


def ratios(ahead: Sequence[float], other: Sequence[float]) -> list[float]:
    """Ratios of two contestants, one per turn."""
    return [a / b for a, b in zip(ahead, other, strict=True)]


class SavedMeasurements:
    """Measurements by (part, load, policy), in order of turns. Those in the file `path` are not
    made again; with None nothing is kept."""

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self._path = path
        self._rates: dict[tuple[str, int, str], list[float]] = {}
        if path is None:
            return
        # as it is read back: tuples are lists there
        head = json.loads(json.dumps({"settings": dict(settings)}))
        if not path.exists():
            self._write(head)
            return
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not lines or lines[0] != head:
            raise InvalidRequest(
                "save", f"{path} holds measurements of other settings; name another file"
            )
        for line in lines[1:]:
            self._rates.setdefault((line["part"], line["load"], line["policy"]), []).append(
                line["tok_s"]
            )

    def rates(self, part: str, load: int, policy: str) -> list[float]:
        return self._rates.get((part, load, policy), [])

    def add(self, part: str, load: int, policy: str, tok_s: float) -> None:
        self._rates.setdefault((part, load, policy), []).append(tok_s)
        if self._path is not None:
            self._write({"part": part, "load": load, "policy": policy, "tok_s": round(tok_s, 2)})

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._path is not None
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


@dataclass
class Tournament:
    """Measures policies under one load after the other: `rate` measures, `book` keeps the figures.

    Every other turn runs backwards, so that no policy always follows the same one. Baselines whose
    median falls below `HOPELESS` of the best baseline's leave: turns are better spent on those that
    may be it.
    """

    part: str
    rate: Rate
    book: SavedMeasurements
    turns: int

    async def run(self, loads: Sequence[int]) -> dict[str, dict[str, Any]]:
        """Measures all loads; returns the figures of each load by its number."""
        points: dict[str, dict[str, Any]] = {}
        for load in loads:
            left = [*BASELINES, ADAPTIVE]
            for turn in range(self.turns):
                for policy in left[:: -1 if turn % 2 else 1]:
                    if len(self.book.rates(self.part, load, policy)) <= turn:
                        self.book.add(self.part, load, policy, await self.rate(policy, load))
                left = self._stay(load, left, turn)
            points[str(load)] = point = self._point(load, left)
            note(f"{self.part}, {load} streams: over {point['rival']}: {point['ratio']:.3f}x")
        return points

    def _stay(self, load: int, left: Sequence[str], turn: int) -> list[str]:
        medians = {
            policy: statistics.median(self.book.rates(self.part, load, policy)[: turn + 1])
            for policy in left
        }
        best = max(medians[policy] for policy in left if policy != ADAPTIVE)
        return [
            policy for policy in left if policy == ADAPTIVE or medians[policy] >= HOPELESS * best
        ]

    def _point(self, load: int, left: Sequence[str]) -> dict[str, Any]:
        """Medians of all policies; ratios of the adaptive policy to the best baseline that stayed,
        by turns."""
        rates = {
            policy: self.book.rates(self.part, load, policy) for policy in (*BASELINES, ADAPTIVE)
        }
        medians = {policy: statistics.median(given) for policy, given in rates.items()}
        rival = max((policy for policy in left if policy != ADAPTIVE), key=medians.__getitem__)
        each = ratios(rates[ADAPTIVE], rates[rival])
        return {
            "rival": rival,
            "ratio": round(statistics.median(each), 4),
            "ratios": [round(min(each), 4), round(max(each), 4)],
            "tok_s": {policy: round(median, 1) for policy, median in medians.items()},
            "turns": {policy: len(given) for policy, given in rates.items()},
        }
