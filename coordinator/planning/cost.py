"""Expected seconds of a lane's steps and rounds. Pure numbers.

A curve holds measured seconds by (tokens, context), and per sequence where sequences cost
something. Whatever was measured, a step takes a positive time that never falls with tokens, with
context or with sequences. A measured step spreads its tokens over as few sequences as hold them; a
cohort's step may have more, and each of those costs its attention besides. Where the curve has that
cost, a step is looked up by (tokens, sequences): tokens added to the same sequences are then
cheaper than tokens that bring new sequences.

Finished steps correct the curve by one slow ratio of measured to expected for each kind: plain
rounds, passes of drafted rounds, drafts, rounds of two cohorts. The rest of a drafted round is the
time between them. Passes with prompt tokens correct nothing. A verifier that becomes slower is so
in rounds of both kinds, while only one kind is run: what changes in the usual kind changes in the
other one, whose own rounds say what they take beside it.

Two cohorts compute at the same time: where verifier and drafter share processors or a card, each
takes longer than alone. What was seen of that fades while there is one cohort, so that two are
tried again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dspark.rounds.survival import Floats
from dspark.runtime.cost_store import never_falling

DraftSeconds = Callable[[float, int], float]  # (sequences, slots) -> seconds of a pass

LEAST_SECONDS = 1e-7  # a step is never free, so that rates stay finite
FAR = 1 << 20  # tokens beyond the grid to which its last slope goes on
WEIGHT = 0.05  # least weight of one round in a running mean
USUAL = 8  # measured rounds of one kind in a row, from which on it is the usual one
OUTLIER = 1.5  # one measurement counts as at most so many times the mean, or its inverse
FADES = 1 / 4096  # share of what is known of two cohorts that is forgotten in a round of one


class CostCurve:
    """Seconds of a step on a grid, interpolated; beyond the most tokens the last slope
    continues."""

    def __init__(
        self,
        tokens: Sequence[int],
        contexts: Sequence[int],
        seconds: Sequence[float],
        *,
        # [contexts] of one more sequence in a step of as many tokens
        sequence_seconds: Sequence[float] = (),
        # in the measured steps; 0: sequences cost nothing by themselves
        tokens_per_sequence: int = 0,
        borrowed: Sequence[int] = (),  # places in `seconds` that hold a neighbour's value
    ) -> None:
        self._tokens = np.asarray(tokens, np.float64)
        self._contexts = np.asarray(contexts, np.float64)
        grid = np.asarray(seconds, np.float64)
        if len(tokens) == 0 or len(contexts) == 0 or grid.shape != (len(tokens) * len(contexts),):
            raise ValueError("seconds must have one value per (tokens, contexts) pair")
        if not (np.isfinite(grid).all() and (grid > 0).all()):
            raise ValueError("seconds must be finite and above 0")
        if (np.diff(self._tokens) <= 0).any() or (np.diff(self._contexts) <= 0).any():
            raise ValueError("tokens and contexts must ascend")
        self.borrowed = tuple(borrowed)
        stairs = never_falling(grid.reshape(len(tokens), len(contexts)))
        self._stairs = _going_on(self._tokens, stairs)
        # [t + 1], and so are the rows of `_stairs`
        self._tokens = np.append(self._tokens, self._tokens[-1] + FAR)
        self._per_sequence = max(tokens_per_sequence, 1)
        # sequences that the tokens fill
        self._filled = np.maximum(self._tokens / self._per_sequence, 1.0)
        self._more = np.zeros(len(contexts))
        told = tokens_per_sequence and len(sequence_seconds) == len(contexts)
        if told and np.isfinite(sequence_seconds).all():
            self._more = np.maximum.accumulate(np.maximum(sequence_seconds, 0.0))
        # a plan reads the same few columns many times
        self._column = functools.lru_cache(16)(self._read)

    def stairs(self, tokens: Floats, context: float, sequences: float = 0.0) -> Floats:
        """Seconds of steps of so many tokens [m], as measured, at one context length."""
        column = self._column(context, sequences)
        seconds: Floats = np.maximum(np.interp(tokens, self._tokens, column), LEAST_SECONDS)
        return seconds

    def measured(self, tokens: float, context: float, sequences: float = 0.0) -> float:
        """What a step of this size took when the curve was measured."""
        return float(np.interp(tokens, self._tokens, self._column(context, sequences)))

    def _read(self, context: float, sequences: float) -> Floats:
        """[t + 1] seconds at one context, interpolated between two measured ones, with the cost of
        sequences beyond those that the tokens fill."""
        grid = self._stairs
        if sequences > 1.0 and self._more.any():
            spread = np.maximum(sequences - self._filled, 0.0)[:, None] * self._more
            grid = np.maximum.accumulate(grid + spread, axis=0)
        last = len(self._contexts) - 1
        at = float(np.interp(context, self._contexts, np.arange(last + 1.0)))
        left, share = int(at), at - int(at)
        mixed: Floats = (1.0 - share) * grid[:, left] + share * grid[:, min(left + 1, last)]
        return mixed

    def grid(self) -> tuple[list[int], list[int], list[float]]:
        """Tokens, contexts and seconds, [tokens, contexts] in row-major order."""
        measured = self._stairs[:-1].ravel().tolist()
        return [int(t) for t in self._tokens[:-1]], [int(c) for c in self._contexts], measured


def _going_on(tokens: Floats, seconds: Floats) -> Floats:
    """[t, c] -> [t + 1, c]: a row `FAR` tokens on by the last slope, never falling with context."""
    slope = np.zeros(seconds.shape[1])
    if len(tokens) > 1:
        slope = (seconds[-1] - seconds[-2]) / (tokens[-1] - tokens[-2])
    return np.vstack((seconds, np.maximum.accumulate(seconds[-1] + FAR * slope)))


@dataclass(slots=True)
class RunningRatio:
    """A slow running mean of positive ratios; single outliers are bounded."""

    value: float
    seen: int = 0

    def add(self, measured: float) -> None:
        if not np.isfinite(measured) or measured <= 0.0:
            return
        self.seen += 1
        bounded = min(max(measured, self.value / OUTLIER), self.value * OUTLIER)
        self.value += max(WEIGHT, 1.0 / self.seen) * (bounded - self.value)


@dataclass(slots=True)
class CostCorrector:
    """Expected seconds of rounds, passes and drafts, corrected by finished rounds."""

    verify: CostCurve
    draft: DraftSeconds
    hop: RunningRatio  # seconds of a drafted round that are neither a pass nor a draft
    plain: RunningRatio = field(default_factory=lambda: RunningRatio(1.0))
    drafted: RunningRatio = field(default_factory=lambda: RunningRatio(1.0))
    drafting: RunningRatio = field(default_factory=lambda: RunningRatio(1.0))
    # rounds of two cohorts, over what they would take on devices of their own
    paired: RunningRatio = field(default_factory=lambda: RunningRatio(1.0))
    _usual: RunningRatio | None = None  # of the kind that is run, apart from a few tries
    _last: RunningRatio | None = None
    _in_row: int = 0  # measured rounds of the last kind

    def correct(self, own: RunningRatio, took: float) -> None:
        """Corrects one kind (`plain`, `drafted` or `paired`) by a round that took so many times
        what was expected."""
        other = self.drafted if own is self.plain else self.plain
        self._in_row = self._in_row + 1 if own is self._last else 1
        self._last = own
        before = own.value
        own.add(took)
        if own is self._usual:
            other.value *= own.value / before
        elif self._in_row >= USUAL:
            self._usual = own
        if own is not self.paired:
            self.paired.seen = 0  # the next one counts whole
            self.paired.value += FADES * (1.0 - self.paired.value)

    def plain_s(self, sequences: float, context: float) -> float:
        return self.plain.value * self.verify.measured(sequences, context, sequences)

    def draft_s(self, sequences: float, slots: int) -> float:
        """Seconds of a draft pass alone."""
        return self.drafting.value * self.draft(sequences, slots)

    def round_s(
        self,
        tokens: Floats,
        context: float,
        sequences: float,
        drafting: float,
        slots: int,
        cohorts: int,
    ) -> Floats:
        """[m] seconds in which all sequences get one round, by tokens [m] in their passes;
        `drafting` of them have `slots` drafted.

        With two cohorts one drafts while the other is verified: the longest of both passes, of both
        drafts, and of one cohort's round by itself, as far as devices are not shared.
        """
        part = sequences / cohorts
        step = self.drafted.value * self.verify.stairs(tokens / cohorts, context, part)
        draft = self.draft_s(drafting / cohorts, slots)
        alone: Floats = step + draft + self.hop.value
        if cohorts == 1:
            return alone
        longest: Floats = np.maximum(np.maximum(2.0 * step, 2.0 * draft), alone)
        return self.paired.value * longest
