"""What is compared: something that answers prompts, already started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

NOT_INSTALLED = "peer not installed"


class Contestant(Protocol):
    """name: as the table has it. most: prompts it can answer at one time; 0: any number."""

    name: str
    most: int

    def answers(self, prompts: Sequence[list[int]], tokens: int) -> list[list[int]]:
        """Exactly `tokens` greedy ids behind each prompt, all asked at once, stop tokens ignored."""


class Absent(Exception):
    """A peer that is not there; the message says why."""
