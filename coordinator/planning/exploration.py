"""Which plans try an alternative to what is thought best: what is never tried is never measured.

A keyed hash decides, so that no block does. Tries may cost a share of the expected tokens: what is
nearly as good is tried often, what is poor hardly ever. Out of plain rounds a few sequences draft
for all: each of them has to be sent its context first, and the try lasts until it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from coordinator.planning.options import PlanOption

EXPLORE = 0.004  # share of expected tokens that trying one alternative may cost
BEGINNING = 0.25  # rounds that a try costs whatever it brings: contexts are sent, passes change
# Plans that try the same, at least: a round is measured only behind another one of its kind. When
# the first round is reported, the verifier is at the next one already.
IN_A_ROW = 2
WAITED = 16  # most plans of a try whose feature rows are on their way
# sequences that a try out of plain rounds drafts for: so many of a kind, one in so many of all
LEAST_TRYING, TRYING = 2, 4


def few_of(keys: Sequence[Hashable]) -> list[int]:
    """[f] places of the sequences, by their keys [n], that a try out of plain rounds drafts for."""
    alike, few, more = Counter[Hashable](), list[int](), list[int]()
    for place, key in enumerate(keys):
        alike[key] += 1
        (few if alike[key] <= LEAST_TRYING else more).append(place)
    return few + more[: max(-(-len(keys) // TRYING) - len(few), 0)]


class Exploration:
    """The tries of one planner. explore: share of expected tokens that each alternative may
    cost."""

    def __init__(self, explore: float) -> None:
        self._explore = explore
        self._tried: PlanOption | None = None  # by the last plan
        self._times = 0  # plans in a row
        self._met = False  # whether a pass of its kind was seen since

    def seen(self, drafted: bool) -> None:
        """Notes a finished pass: whether sequences of this planner had blocks in it."""
        if self._tried is not None:
            self._met = self._met or drafted is (self._tried.slots > 0)

    def next(
        self, drawn: float, best: PlanOption, options: Sequence[PlanOption]
    ) -> PlanOption | None:
        """What a plan of this draw tries in place of `best`, one of `options`; None for nothing.

        The options differ in slots.
        """
        tried, self._tried = self._tried, None
        if tried is not None and self._times < (IN_A_ROW if self._met else WAITED):
            self._times += 1
            self._tried = next((each for each in options if each.slots == tried.slots), None)
            return self._tried
        for option in options:
            drawn -= self._share(best, option) / IN_A_ROW
            if drawn < 0.0:
                self._tried, self._times, self._met = option, 1, False
                break
        return self._tried

    def _share(self, best: PlanOption, option: PlanOption) -> float:
        """Share of plans that try an option."""
        lost = (1.0 - option.rate / best.rate) * option.seconds / best.seconds
        return self._explore / (max(lost, 0.0) + BEGINNING)


_MIX, _MASK = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB), (1 << 64) - 1


def keyed(sequence: int, number: int) -> float:
    """A number in [0, 1), a function of both arguments alone: splitmix64."""
    mixed = (sequence * _MIX[0] + number * _MIX[1] + _MIX[2]) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * _MIX[1]) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * _MIX[2]) & _MASK
    return float(mixed >> 11) * 2.0**-53
