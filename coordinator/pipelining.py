"""One cohort or two: whether a lane drafts for one half while the other is verified.

Two halves overlap drafting with verification and pay for it with smaller steps, so which is better is measured:
committed tokens per second at the depth in force against a short trial of the other. A trial must win clearly, and
trials that lose become rarer. The halves are told apart by sequence number, never by content. Pure numbers.
"""

from __future__ import annotations

LEAST_SEQUENCES = 4  # fewer have nothing to overlap
WINDOW_ROUNDS = 24  # cohorts judged per measurement
SETTLE_ROUNDS = 4  # cohorts after a change that are not measured
MARGIN = 1.03  # by which a trial has to win
FIRST_TRIAL, RAREST_TRIAL = 4, 64  # windows between trials
CHANGED = 0.2  # change in the number of sequences after which windows do not compare


class Pipelining:
    """The depth in force, and the measurement that may change it."""

    def __init__(self, most: int) -> None:
        self._most = most  # 1: always one cohort
        self.depth = 1
        self._home = 1  # the depth that trials are held against
        self._home_rate = 0.0
        self._until_trial = self._pause = FIRST_TRIAL
        self._cohorts = -SETTLE_ROUNDS
        self._committed = 0
        self._began = 0.0
        self._sequences = 0.0

    def judged(self, now: float, committed: int, sequences: int, *, worth_a_trial: bool) -> None:
        """A cohort was judged; `sequences` take part in rounds. `worth_a_trial`: nothing known speaks against it."""
        if self._most < 2:
            return
        if sequences < LEAST_SEQUENCES:
            self._settle_on(1, now)
            self._home_rate = 0.0
            return
        self._cohorts += 1
        if self._cohorts <= 0:
            self._began, self._committed, self._sequences = now, 0, float(sequences)
            return
        self._committed += committed
        if self._cohorts < WINDOW_ROUNDS * self.depth or now <= self._began:
            return
        rate = self._committed / (now - self._began)
        if abs(sequences - self._sequences) > CHANGED * self._sequences:
            self._settle_on(self._home, now)  # another load: measure again
            self._home_rate = 0.0
        elif self.depth == self._home:
            self._home_rate = rate if self._home_rate == 0.0 else 0.5 * (self._home_rate + rate)
            self._until_trial -= 1
            self._settle_on(self._home, now)
            if self._until_trial <= 0 and worth_a_trial:
                self.depth = 3 - self._home
        elif rate > MARGIN * self._home_rate:
            self._home, self._home_rate = self.depth, rate
            self._until_trial = self._pause = FIRST_TRIAL
            self._settle_on(self._home, now)
        else:
            self._pause = min(2 * self._pause, RAREST_TRIAL)
            self._until_trial = self._pause
            self._settle_on(self._home, now)

    def _settle_on(self, depth: int, now: float) -> None:
        self._home = self.depth = depth
        self._cohorts, self._committed, self._began = -SETTLE_ROUNDS, 0, now
