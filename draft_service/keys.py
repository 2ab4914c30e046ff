"""Under which number a context lives here.

Several verifiers may give the same number to different sequences, so whatever one of them opens gets a number of this
process.
"""

from __future__ import annotations

import itertools

_OURS = 1 << 63  # above any number that a coordinator gives


class ContextKeys:
    """By verifier process and its number of the sequence. Changed on the device thread, read from anywhere."""

    def __init__(self) -> None:
        self._numbers = itertools.count(_OURS)
        self._known: dict[tuple[int, int], tuple[int, int]] = {}  # number here, owner

    def open(self, verifier: int, sequence: int, owner: int) -> int:
        """Gives a number, or the one that was given: the newest owner holds it."""
        known = self._known.get((verifier, sequence))
        number = known[0] if known is not None else next(self._numbers)
        self._known[verifier, sequence] = (number, owner)
        return number

    def find(self, verifier: int, sequence: int) -> int:
        """The number, or the verifier's own where nothing was opened through it."""
        known = self._known.get((verifier, sequence))
        return sequence if known is None else known[0]

    def close(self, verifier: int, sequence: int, owner: int) -> None:
        """Forgets it, unless somebody else holds it by now."""
        known = self._known.get((verifier, sequence))
        if known is not None and known[1] == owner:
            del self._known[verifier, sequence]
