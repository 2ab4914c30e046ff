"""Whether drafting pays for a cohort at all. Pure numbers.

A greedy cohort whose drafts have not paid for themselves goes without, so that speculation is never much slower than
plain decoding; rows keep flowing to its drafter, and now and then a cohort explores, so that it may come back.
Invariant 2, no peeking: decided before the draft is asked for, from finished rounds and a keyed hash of
(sequence, round) alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.policy import Greedy
from coordinator.rounds import Turn, mean_context
from coordinator.step_cost import StepCost

EXPLORE_BITS = 4  # one cohort in sixteen drafts although it does not seem to pay
LANE_WEIGHT = 0.05
OWN_WEIGHT = 0.2
MARGIN = 1.05  # plain decoding has to be this much better
WARM_UP = 8  # judged drafts before the lane has an opinion

_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9)
_MASK = (1 << 64) - 1


@dataclass(slots=True)
class Yield:
    """What a drafted round brought, as running means."""

    tokens: float = 0.0  # committed, the target's own included
    verified: float = 0.0  # drafted tokens verified

    def observe(self, tokens: int, verified: int, weight: float) -> None:
        self.tokens += weight * (tokens - self.tokens)
        self.verified += weight * (verified - self.verified)


class Bypass:
    """Keeps what drafts brought, per lane and per sequence."""

    def __init__(self, cost: StepCost) -> None:
        self._cost = cost
        self._lane = Yield()
        self._own: dict[int, Yield] = {}
        self._judged = 0

    def applies(self, turns: Sequence[Turn], drafted: Sequence[Turn], draft_s: float) -> bool:
        """Whether these greedy turns had better not be drafted for."""
        if self._cost.verify is None or self._judged < WARM_UP or not drafted:
            return False
        if not all(isinstance(turn.track.request.policy, Greedy) for turn in drafted) or _explores(drafted[0]):
            return False
        context, others = mean_context(turns), len(turns) - len(drafted)
        expected = [self._own.get(turn.cursor.sequence, self._lane) for turn in drafted]
        verified = sum(each.verified for each in expected)
        plain_s = self._cost.verify.seconds(len(turns), context) + self._cost.speculative.seconds
        step_s = self._cost.verify.seconds(len(turns) + verified, context) + self._cost.speculative.seconds
        fast = (others + sum(each.tokens for each in expected)) / (step_s + draft_s + self._cost.draft_hops.seconds)
        return len(turns) / plain_s > MARGIN * fast

    def observe(self, sequence: int, tokens: int, verified: int) -> None:
        """A judged round that had a draft."""
        self._judged += 1
        self._lane.observe(tokens, verified, max(LANE_WEIGHT, 1.0 / self._judged))
        own = self._own.setdefault(sequence, Yield(self._lane.tokens, self._lane.verified))
        own.observe(tokens, verified, OWN_WEIGHT)

    def forget(self, sequence: int) -> None:
        self._own.pop(sequence, None)


def _explores(turn: Turn) -> bool:
    mixed = (turn.cursor.sequence * _MIX[0] + turn.cursor.round * _MIX[1]) & _MASK
    mixed = ((mixed ^ (mixed >> 31)) * _MIX[1]) & _MASK
    return mixed >> (64 - EXPLORE_BITS) == 0
