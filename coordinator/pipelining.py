"""One cohort or two: whether a lane drafts for one half while the other is verified.

Two halves overlap drafting with verification and pay for it with smaller steps, so which is better is measured:
committed tokens per second at the depth in force against a short trial of the other. A trial must win clearly, one
that clearly loses ends early, and trials that lose become rarer. The halves are told apart by sequence number, never
by content. Pure numbers.
"""

from __future__ import annotations

LEAST_SEQUENCES = 4  # fewer have nothing to overlap
WINDOW_ROUNDS = 24  # cohorts judged per measurement
SETTLE_ROUNDS = 4  # cohorts after a change that are not measured
MARGIN = 1.03  # by which a trial has to win
GLANCE_ROUNDS, HOPELESS = 8, 0.93  # after so many cohorts of a trial it must not be worse than this
FIRST_TRIAL, RAREST_TRIAL = 4, 64  # windows between trials
CHANGED = 0.2  # change in the number of sequences after which windows do not compare


class Pipelining:
    """The depth in force, and the measurement that may change it."""

    def __init__(self, cohorts: int = 0) -> None:
        self._fixed = cohorts  # 0: measured
        self.depth = max(cohorts, 1)
        self._home = self.depth  # what trials are held against
        self._home_rate = 0.0
        self._until_trial = self._pause = FIRST_TRIAL
        self._cohorts = -SETTLE_ROUNDS
        self._committed = 0
        self._began = 0.0
        self._sequences = 0.0

    def overlaps(self) -> bool:
        """Whether two cohorts take turns now."""
        return self.depth > 1

    def judged(self, now: float, committed: int, sequences: int) -> bool:
        """A cohort was judged; `sequences` take part in rounds. Whether a trial is due: see `may_try`."""
        if self._fixed:
            return False
        if sequences < LEAST_SEQUENCES:
            self._forget(1, now)
            return False
        self._cohorts += 1
        if self._cohorts <= 0:
            self._began, self._committed, self._sequences = now, 0, float(sequences)
            return False
        self._committed += committed
        if now <= self._began or (self._cohorts < WINDOW_ROUNDS * self.depth and not self._hopeless(now)):
            return False
        if abs(sequences - self._sequences) > CHANGED * self._sequences:
            self._forget(self._home, now)  # another load: measure again
            return False
        return self._measured(self._committed / (now - self._began), now)

    def may_try(self, two_could_win: bool) -> None:
        """A trial is due: begins it, or puts it off. One cohort is always worth a trial."""
        if two_could_win or self._home > 1:
            self.depth = 3 - self._home
        else:
            self._until_trial = self._pause

    def _hopeless(self, now: float) -> bool:
        """Whether a trial is so far behind that the rest of it would be wasted."""
        if self.depth == self._home or self._cohorts != GLANCE_ROUNDS * self.depth:
            return False
        return self._committed / (now - self._began) < HOPELESS * self._home_rate

    def _measured(self, rate: float, now: float) -> bool:
        """A window is over."""
        trial = self.depth != self._home
        if trial and rate > MARGIN * self._home_rate:
            self._home, self._home_rate = self.depth, rate
            self._until_trial = self._pause = FIRST_TRIAL
        elif trial:
            longer = 2 if self._cohorts >= WINDOW_ROUNDS * self.depth else 4  # it was ended early
            self._until_trial = self._pause = min(longer * self._pause, RAREST_TRIAL)
        else:
            self._home_rate = rate if self._home_rate == 0.0 else 0.5 * (self._home_rate + rate)
            self._until_trial -= 1
        self._restart(self._home, now)
        return not trial and self._until_trial <= 0

    def _forget(self, depth: int, now: float) -> None:
        self._home, self._home_rate = depth, 0.0
        self._restart(depth, now)

    def _restart(self, depth: int, now: float) -> None:
        self.depth = depth
        self._cohorts, self._committed, self._began = -SETTLE_ROUNDS, 0, now
