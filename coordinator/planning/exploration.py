"""Which plans try an alternative to what is thought best: what is never tried is never measured.

A keyed hash decides, so that no block does. A try may cost a share of the expected tokens: what is
nearly as good is tried often, what is poor hardly ever. Out of plain rounds a few sequences draft
for all: each of them has to be sent its context first, and the try lasts until it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from coordinator.planning.options import WINDOW, PlanOption

EXPLORE = 0.004  # share of expected tokens that trying may cost
PLAINLY = 0.3  # part of that for trying plain rounds: their seconds change rarely
# part of it, out of plain rounds, for whole blocks, and for the likeliest ones, once it is based on
# so many blocks
EITHER, SETTLED = 0.5, WINDOW // 2
MOST_EXPLORED = 1 / 16  # largest share of plans that try one alternative
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
    """The tries of one planner. explore: share of expected tokens that they may cost."""

    def __init__(self, explore: float) -> None:
        self._explore = explore
        self.tried: PlanOption | None = None  # by the last plan
        self._times = 0  # plans in a row
        self._met = False  # whether a pass of its kind was seen since

    def seen(self, drafted: bool) -> None:
        """Notes a finished pass: whether sequences of this planner had blocks in it."""
        if self.tried is not None:
            self._met = self._met or drafted is (self.tried.slots > 0)

    def going_on(self, options: Sequence[PlanOption]) -> PlanOption | None:
        """The option that is being tried, if the next plan goes on with it."""
        tried, times = self.tried, self._times
        if tried is not None and times < (IN_A_ROW if self._met else WAITED):
            self.tried = next((each for each in options if each.alike(tried)), None)
        else:
            self.tried = None
        self._times += 1
        return self.tried

    def begun(
        self,
        drawn: float,
        best: PlanOption,
        others: tuple[PlanOption, PlanOption],
        rated: Sequence[tuple[float, float]],
        blocks: int,
    ) -> PlanOption | None:
        """The alternative to `best` that a plan of this draw begins to try; None for none.

        others: drafts of whole blocks, and plain rounds or, out of these, the likeliest drafts;
        rated: [2] (rate, seconds) of one round of each; blocks: on which these are based.
        """
        either = EITHER if blocks >= SETTLED else 1.0
        for_whole, for_other = (1.0, PLAINLY) if best.slots else (either, either)
        whole, other = others
        least = for_whole * self._share(best, rated[0]) / IN_A_ROW
        share = for_other * self._share(best, rated[1]) / IN_A_ROW if other.rate else 0.0
        self.tried = whole if drawn < least else other if drawn > 1.0 - share else None
        self._times, self._met = 1, False
        return self.tried

    def _share(self, best: PlanOption, rated: tuple[float, float]) -> float:
        """Share of plans that try an option of this rate and these seconds."""
        rate, seconds = rated
        lost = (1.0 - rate / best.rate) * seconds / best.seconds
        if MOST_EXPLORED * lost <= self._explore:
            return MOST_EXPLORED if self._explore > 0.0 else 0.0
        return self._explore / lost


_MIX, _MASK = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB), (1 << 64) - 1


def keyed(sequence: int, number: int) -> float:
    """A number in [0, 1), a function of both arguments alone: splitmix64."""
    mixed = (sequence * _MIX[0] + number * _MIX[1] + _MIX[2]) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * _MIX[1]) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * _MIX[2]) & _MASK
    return float(mixed >> 11) * 2.0**-53
