"""The interface of B2 and its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

NOT_INSTALLED = "peer not installed"


@dataclass(frozen=True)
class Reply:
    """One greedy answer. seconds: from asking to having it whole, the client's part included.

    rounds: passes of the target after the prefill, 0 where nobody counts them.
    """

    ids: tuple[int, ...]
    seconds: float
    rounds: int = 0


class Contestant(Protocol):
    """Something that answers one prompt at a time, already started and warm."""

    name: str

    def ask(self, prompt: list[int], tokens: int) -> Reply:
        """Exactly `tokens` greedy ids after `prompt`, stop tokens ignored."""


class Absent(Exception):
    """A peer that is not there; the message says why."""
