"""How long rounds take, from one report of a cohort to the next. Pure; time is passed in."""

from __future__ import annotations

from collections.abc import Iterable


class RoundSpans:
    """Of one verifier."""

    def __init__(self) -> None:
        self._last: dict[
            int, tuple[float, frozenset[int]]
        ] = {}  # by cohort: when its last pass ended, whose it was

    def ended(self, cohort: int, sequences: Iterable[int], now: float, pass_s: float) -> float:
        """Seconds of a round whose pass, of these sequences and so many seconds, has just ended:
        since the cohort's last pass, or the pass alone where none of them was in that. A cohort
        that stood still, or waited for prompts, says nothing of rounds."""
        before, others = self._last.get(cohort, (0.0, frozenset()))
        own = frozenset(sequences)
        self._last[cohort] = now, own
        return pass_s if own.isdisjoint(others) else now - before
