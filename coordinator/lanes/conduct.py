"""How lanes behave: how long they wait, how much goes on at once, what they spare themselves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Conduct:
    """Of every lane of a coordinator. Waits are seconds."""

    prefills: int = 32  # at one time: with many streams of short answers, a handful a round would be all that enter
    prefill_s: float = 120.0
    verify_s: float = 10.0
    bypass: bool = True  # whether a lane may go without drafts where they do not pay
    cohorts: int = 0  # 1 or 2 that take turns; 0: whichever commits faster
    window: int = 2  # rounds that a verifier may run beyond the last acknowledged one
