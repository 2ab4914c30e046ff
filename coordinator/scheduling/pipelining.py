"""How a lane goes about its rounds: one cohort, two that take turns, or without drafts at all.

Two halves overlap drafting with verification and pay for it with smaller steps. Without drafts nothing is asked of
drafters, and no rows travel: what a lane of plain decoding would do. Which of the three is best is measured: committed
tokens per second of the one in force against a short trial of another. A trial must win clearly, one that clearly loses
ends early, and trials that lose become rarer. The halves are told apart by sequence number, never by content. Pure
numbers.
"""

from __future__ import annotations

import enum
import math

LEAST_SEQUENCES = 4  # fewer have nothing to overlap
WINDOW_ROUNDS = 24  # cohorts judged per measurement
SETTLE_ROUNDS = 4  # cohorts after a change that are not measured
FILL_ROUNDS = 12  # of every cohort after a plain time: contexts of drafters are filled first
MARGIN = 1.03  # by which a trial has to win
GLANCE_ROUNDS, HOPELESS = 8, 0.93  # after so many cohorts of a trial it must not be worse than this
FIRST_TRIAL, RAREST_TRIAL = 4, 64  # windows between trials
FIRST_PLAIN = 1  # window before drafts are left out for the first time: it is tried where they hardly pay anyway
CHANGED = 0.2  # change in the number of sequences after which windows do not compare
NEWEST = 0.3  # weight of a window in the rate that trials are held against: windows differ by who happens to begin


class Mode(enum.Enum):
    """What is tried against what."""

    ONE = "one cohort"
    TWO = "two cohorts"
    PLAIN = "no drafts"


class Pipelining:
    """The mode in force, and the measurement that may change it. cohorts: 1 or 2 stay what they are, 0 is measured."""

    def __init__(self, cohorts: int = 0) -> None:
        self._fixed = cohorts > 0
        self.mode = self._home = Mode.TWO if cohorts > 1 else Mode.ONE  # in force, and what trials are held against
        self._home_rate = 0.0
        self._pause = _first()  # windows between trials of each
        self._until = _first()  # to the next
        self._cohorts = -SETTLE_ROUNDS
        self._committed = 0
        self._began = 0.0
        self._sequences = 0.0
        self._best: dict[int, Mode] = {}  # what was best last time, by load

    @property
    def depth(self) -> int:
        """Cohorts at a time."""
        return 2 if self.mode is Mode.TWO else 1

    def overlaps(self) -> bool:
        """Whether two cohorts take turns now."""
        return self.mode is Mode.TWO

    def silent(self) -> bool:
        """Whether sequences that need no drafts go without for now, and newcomers without a drafter."""
        return self.mode is Mode.PLAIN

    @property
    def home(self) -> Mode:
        """What trials are held against."""
        return self._home

    def joined(self, sequences: int) -> None:
        """One more came, so many are there. A load that was known before is met as it was best met."""
        settling = not self._fixed and not self._home_rate and self._cohorts <= 0
        if settling and sequences >= LEAST_SEQUENCES:  # a window that counts already is of one mode to its end
            self.mode = self._home = self._best.get(_level(sequences), self._home)

    def drafters_changed(self) -> None:
        """Another drafter: trials that were lost, and what was best under other loads, say little now."""
        self._best.clear()
        self._pause, self._until = _first(), _first()

    def judged(self, now: float, committed: int, sequences: int) -> bool:
        """A cohort was judged; `sequences` take part in rounds. Whether a trial is due: see `may_try`."""
        if self._fixed:
            return False
        if sequences < LEAST_SEQUENCES:
            self._forget(Mode.ONE, now)
            return False
        self._cohorts += 1
        if self._cohorts <= 0:
            self._began, self._committed, self._sequences = now, 0, float(sequences)
            self.joined(sequences)
            return False
        self._committed += committed
        if now <= self._began or (self._cohorts < WINDOW_ROUNDS * self.depth and not self._hopeless(now)):
            return False
        if abs(sequences - self._sequences) > CHANGED * self._sequences:
            self._forget(self._home, now)  # another load: measure again
            return False
        return self._measured(self._committed / (now - self._began), now)

    def may_try(self, *, two: bool, plain: bool) -> None:
        """A trial is due: begins one of those that could win, in turns, or puts it off. One is always worth a trial."""
        could = {Mode.ONE: True, Mode.TWO: two, Mode.PLAIN: plain}
        for mode in self._due():
            self._until[mode] = self._pause[mode]
            if could[mode]:
                self.mode = mode
                if self._home is Mode.PLAIN:
                    self._cohorts = -FILL_ROUNDS * self.depth
                return

    def _due(self) -> list[Mode]:
        """Modes whose trial is due, the one that has waited longest first."""
        due = [mode for mode in Mode if mode is not self._home and self._until[mode] <= 0]
        return sorted(due, key=lambda mode: self._until[mode])

    def _hopeless(self, now: float) -> bool:
        """Whether a trial is so far behind that the rest of it would be wasted."""
        if self.mode is self._home or self._cohorts != GLANCE_ROUNDS * self.depth:
            return False
        return self._committed / (now - self._began) < HOPELESS * self._home_rate

    def _measured(self, rate: float, now: float) -> bool:
        """A window is over."""
        trial = self.mode is not self._home
        if trial and rate > MARGIN * self._home_rate:
            self._home, self._home_rate = self.mode, rate
            self._pause, self._until = _first(), _first()
        elif trial:
            longer = 2 if self._cohorts >= WINDOW_ROUNDS * self.depth else 4  # it was ended early
            self._pause[self.mode] = min(longer * self._pause[self.mode], RAREST_TRIAL)
            self._until[self.mode] = self._pause[self.mode]
        else:
            self._home_rate = rate if self._home_rate == 0.0 else self._home_rate + NEWEST * (rate - self._home_rate)
            self._until = {mode: left - 1 for mode, left in self._until.items()}
        self._best[_level(self._sequences)] = self._home
        self._restart(self._home, now)
        return not trial and bool(self._due())

    def _forget(self, mode: Mode, now: float) -> None:
        self._home, self._home_rate = mode, 0.0
        self._restart(mode, now)

    def _restart(self, mode: Mode, now: float) -> None:
        self.mode = mode
        self._cohorts, self._committed, self._began = -SETTLE_ROUNDS, 0, now


def _level(sequences: float) -> int:
    """Loads that compare."""
    return round(math.log2(sequences) / math.log2(1.0 + CHANGED) / 2.0)


def _first() -> dict[Mode, int]:
    return {mode: FIRST_PLAIN if mode is Mode.PLAIN else FIRST_TRIAL for mode in Mode}
