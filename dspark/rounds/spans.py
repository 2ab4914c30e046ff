"""Measures how long rounds take, from pass to pass of a cohort. Pure; time is passed in."""

from __future__ import annotations

from collections.abc import Iterable


class RoundSpans:
    """The round times of one verifier."""

    def __init__(self) -> None:
        # by cohort: when its last pass ended, and the sequences in it
        self._last: dict[int, tuple[float, frozenset[int]]] = {}

    def ended(self, cohort: int, sequences: Iterable[int], now: float, pass_s: float) -> float:
        """Seconds of the round whose pass, of these sequences and `pass_s` long, has just ended:
        since the cohort's last pass, or `pass_s` where none of them was in that. A cohort that
        stood still, or waited for prompts, tells nothing about rounds."""
        before, others = self._last.get(cohort, (0.0, frozenset()))
        own = frozenset(sequences)
        self._last[cohort] = now, own
        return pass_s if own.isdisjoint(others) else now - before
