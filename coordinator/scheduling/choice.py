"""How long a cohort's drafts are and for which rows: the choice at which tokens per second are highest. Pure numbers.

Drafted slots come one after the other, so a cohort has one length. A row is worth its draft if it brings more than the
cohort would commit in the time that it takes, so the choice of rows depends on the rate and the rate on the choice:
settled by turns for every length at once, as for any ratio of sums, from plain decoding's rate upwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dspark.rounds.schedule import Floats, Ints

Bools = npt.NDArray[np.bool_]
DraftSeconds = Callable[[float, int], float]  # (share of the sequences that could be drafted for, slots) -> seconds
RoundSeconds = Callable[[Floats, Floats], Floats]  # ([k] tokens in the step, [k] share drafted for) -> [k] seconds

TURNS = 3  # between the choice of rows and the rate it brings


class Drafts(NamedTuple):
    """Seconds of a draft by slots [k], linear in the share of the sequences that could be drafted for."""

    first: Floats
    each: Floats  # for all of them, on top

    @staticmethod
    def of(draft_seconds: DraftSeconds, slots: Sequence[int]) -> Drafts:
        whole = np.array([draft_seconds(1.0, count) for count in slots])
        half = np.array([draft_seconds(0.5, count) for count in slots])
        first = np.clip(2.0 * half - whole, 0.0, whole)  # half may take longer where some of it is hidden
        return Drafts(first, whole - first)

    def seconds(self, share: Floats) -> Floats:
        """share [k], 0 where nobody is drafted for."""
        return np.where(share > 0.0, self.first + share * self.each, 0.0)


class Field(NamedTuple):
    """A cohort before the choice: what free rows could bring by slots drafted for them, what the rest does anyway."""

    free: Bools  # [n] rows to choose from
    brought: Floats  # [n, k] weighted tokens by slots drafted
    used: Floats  # [n, k] tokens in the step for them
    worth: float  # weighted tokens without any free row's draft
    tokens: float  # in the step, likewise
    own: int  # rows that insist on their drafts
    able: int  # rows that could be drafted for, at least 1

    def slope(self, step: Callable[[Floats], Floats]) -> Floats:
        """[k] seconds a token adds to a step, on average from nobody's drafts to everybody's."""
        everybody = self.tokens + self.used[self.free].sum(axis=0)
        ends = step(everybody), step(np.array([self.tokens]))
        seconds: Floats = (ends[0] - ends[1]) / np.maximum(everybody - self.tokens, 1.0)
        return seconds


class Options(NamedTuple):
    """What a cohort could do, by slots drafted [k]."""

    rates: Floats  # expected weighted tokens per second
    tokens: Floats  # in the step
    chosen: Bools  # [n, k] free rows that pay

    @property
    def pays(self) -> bool:
        """Whether any row is worth any draft. The rates of lengths at which none is are 0, if this holds."""
        return bool(self.chosen.any())


def best_rows(field: Field, plain: float, row_s: Floats, round_s: RoundSeconds) -> Options:
    """The best rows for every length.

    plain: the rate without the choice. row_s: [n, k] seconds that a row's draft adds. Where no row pays at any length,
    the rates are those of drafting for everybody: how far off that is.
    """

    def outcome(chosen: Bools) -> tuple[Floats, Floats, Ints]:
        rows = chosen.sum(axis=0)
        worth = field.worth + np.where(chosen, field.brought, 0.0).sum(axis=0)
        tokens = field.tokens + np.where(chosen, field.used, 0.0).sum(axis=0)
        return worth / round_s(tokens, (rows + field.own) / field.able), tokens, rows

    rate = plain
    for _ in range(TURNS):
        chosen = field.free[:, None] & (rate * row_s <= field.brought)
        rates, tokens, rows = outcome(chosen)
        rates = np.where(rows > 0, rates, 0.0)
        rate = max(plain, float(rates.max()))
    if not rows.any():
        rates, tokens, _ = outcome(np.broadcast_to(field.free[:, None], chosen.shape))
    return Options(rates, tokens, chosen)
