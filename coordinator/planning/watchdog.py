"""Watches whether a drafter drafts as well as before. An alarm leaves it out for a while. Pure.

A bad drafter costs speed, never an answer. Four faults are distinguished: blocks that cannot have
been drafted (invalid ids, confidences that are not numbers), blocks that are missing or empty,
blocks of which far less is accepted than their confidences promise, and blocks that are worth next
to nothing beside earlier ones of this version. The planner learns of the last two by itself, but
slowly, since it must not follow every passage of a text; a watchdog may be quick, since it looks
for large factors only.

Sums fade by blocks, and the usual is only learned without an alarm. A drafter with an alarm is left
out for a pause; then it is on trial with one sequence, which clears the alarm or begins a pause
twice as long.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from dspark.rounds.events import RoundReport

RECENT = 40.0  # blocks after which an observation weighs a third
PAST = 2048.0  # the same for the sums that the usual is read from
SHARE = 0.35  # least share of the usual ratio of accepted to promised; less is a collapse
LITTLE = 0.15  # least share of the usual worth of a block
NONE = 24.0  # first slots promised in a row with none accepted: a chance of at most exp(-24)
CERTAIN = 4.0  # standard deviations by which less than usual is accepted
# tokens that prior agreement counts for; prior variance of accepted tokens over their mean
PRIOR, SPREAD = 16.0, 2.0
SETTLED = 256  # blocks after which the usual is known
BAD_MEMORY = 64.0  # passes
ON_TRIAL = 0.8  # of each limit in `BAD`, where a trial starts: less is tolerated after an alarm
TRIAL = 32  # blocks of a trial, which needs `HELD` of the usual acceptance
LONGEST_TRIAL = 4 * TRIAL  # if blocks promise so little that fewer of them prove nothing
HELD = 0.5
PAUSE_S, LONGEST_S = 10.0, 160.0
COST = 8.0  # least pause after a failed trial, in durations of that trial, up to `LONGEST_S`


class Alarm(enum.Enum):
    """Why a drafter is left out, as metrics name it."""

    MALFORMED = "malformed"
    NOTHING_DRAFTED = "nothing drafted"
    NOTHING_ACCEPTED = "nothing accepted"
    COLLAPSE = "collapse"

    @property
    def useless(self) -> bool:
        """Whether there are no valid blocks at all: the drafter is then left out under any
        policy."""
        return self in (Alarm.MALFORMED, Alarm.NOTHING_DRAFTED)


# Limits of the faded shares of bad blocks, lower for those that no healthy drafter sends. A faded
# share lags: with half of all blocks bad it passes a third within a hundred passes.
BAD = {Alarm.MALFORMED: 0.2, Alarm.NOTHING_DRAFTED: 0.34}
_EMPTY = {
    "invalid": Alarm.MALFORMED,
    "": Alarm.NOTHING_DRAFTED,
    "late": Alarm.NOTHING_DRAFTED,
    "drafter late": Alarm.NOTHING_DRAFTED,
    "unknown sequence": Alarm.NOTHING_DRAFTED,
    "rows lost": Alarm.NOTHING_DRAFTED,
}


@dataclass(slots=True)
class BlockSums:
    """Fading sums over valid blocks."""

    blocks: float = 0.0
    promised: float = 0.0  # tokens, of the slots that were verified
    accepted: float = 0.0
    squared: float = 0.0  # sum of (accepted - promised)^2
    worth: float = 0.0  # accepted tokens, and the promise of unverified slots behind a whole prefix
    slots: float = 0.0  # drafted

    def add(self, seen: BlockSums, memory: float) -> None:
        kept = math.exp(-seen.blocks / memory)
        for name in BlockSums.__slots__:
            setattr(self, name, kept * getattr(self, name) + getattr(seen, name))

    @property
    def ratio(self) -> float:
        """Accepted tokens over promised ones, shrunk to agreement."""
        return (self.accepted + PRIOR) / (self.promised + PRIOR)

    @property
    def spread(self) -> float:
        """Variance of a block's accepted tokens over their mean."""
        return (self.squared + SPREAD * PRIOR) / (self.promised * self.ratio + PRIOR)

    @property
    def mean_worth(self) -> float:
        return self.worth / self.blocks if self.blocks else 0.0

    @property
    def mean_slots(self) -> float:
        return self.slots / self.blocks if self.blocks else 0.0


@dataclass(slots=True)
class DraftedPass(BlockSums):
    """Sums over the rounds of one pass that one drafter drafted for."""

    malformed: int = 0
    missing: int = 0
    # valid blocks of constrained answers: drafters ignore constraints, so acceptance says nothing
    formed: int = 0
    first: float = 0.0  # promised tokens of first slots that were verified


def drafted_passes(rounds: Sequence[RoundReport], formed: Sequence[bool]) -> dict[int, DraftedPass]:
    """Sums by drafter's number, without rounds whose missing block is not the drafter's fault.
    formed: for each round, whether its answer has a constraint."""
    found: dict[int, DraftedPass] = {}
    for each, form in zip(rounds, formed, strict=True):
        fault = None if len(each.confidence) else _EMPTY.get(each.why_empty)
        if not each.drafter or (fault is None and not len(each.confidence)):
            continue
        seen = found.setdefault(each.drafter, DraftedPass())
        if fault is not None:
            seen.malformed += fault is Alarm.MALFORMED
            seen.missing += fault is Alarm.NOTHING_DRAFTED
        elif form:
            seen.formed += 1
        else:
            promised = _survivals(each.confidence[: each.verified])
            whole = each.accepted == each.verified
            behind = _survivals(each.confidence[each.verified :]) if whole else 0.0
            seen.blocks += 1
            seen.promised += promised
            seen.accepted += each.accepted
            seen.squared += (each.accepted - promised) ** 2
            seen.worth += each.accepted + behind
            seen.slots += len(each.confidence)
            seen.first += each.confidence[0] if each.verified else 0.0
    return found


def _survivals(confidence: Sequence[float]) -> float:
    return float(sum(accumulate(confidence, mul)))


class DrafterWatch:
    """Watches one drafter process at one verifier. past: usual sums of its version, which its
    processes share."""

    def __init__(self, past: BlockSums) -> None:
        self.past, self.recent = past, BlockSums()
        # sum of the squared weights of recent blocks, for their variance
        self._squares = 0.0
        self.alarm: Alarm | None = None  # None without one
        self._in_vain = 0.0  # first slots promised since a token was accepted
        self._bad = dict.fromkeys(BAD, 0.0)
        self._until = self._began = 0.0  # end of the pause, begin of the trial behind it
        self._trial = 0.0  # blocks seen in the trial
        self._pause_s = PAUSE_S

    def left_out(self, now: float) -> bool:
        """Whether the drafter is in its pause and gets no sequence."""
        return self.alarm is not None and now < self._until

    def pause_left_s(self, now: float) -> float:
        return max(self._until - now, 0.0) if self.alarm is not None else 0.0

    @property
    def accepted_length(self) -> float:
        """Recent mean tokens of a round with a block, the target's own included; 0 at first."""
        return 1.0 + self.recent.accepted / self.recent.blocks if self.recent.blocks else 0.0

    def observe(self, seen: DraftedPass, now: float) -> bool:
        """Learns from one pass. Returns whether an alarm was raised or cleared."""
        if self.left_out(now):
            return False
        if self.alarm is not None and not self._began:
            self._began = now
        asked = seen.blocks + seen.formed + seen.malformed + seen.missing
        bad = {Alarm.MALFORMED: seen.malformed, Alarm.NOTHING_DRAFTED: seen.missing}
        for kind, count in bad.items():
            self._bad[kind] += (count / asked - self._bad[kind]) / BAD_MEMORY
        self.recent.add(seen, RECENT)
        self._squares = math.exp(-2.0 * seen.blocks / RECENT) * self._squares + seen.blocks
        self._in_vain = 0.0 if seen.accepted else self._in_vain + seen.first
        found = self._found()
        if found is not None:
            return self.raised(found, now)
        if self.alarm is not None:
            self._trial += seen.blocks + seen.formed
            if self._trial < TRIAL or (self._trial < LONGEST_TRIAL and not self._tells):
                return False
            if not self._kept(HELD):
                return self.raised(Alarm.COLLAPSE, now)
            self.alarm, self._pause_s, self._began = None, PAUSE_S, 0.0
            return True
        self.past.add(seen, PAST)
        return False

    def raised(self, alarm: Alarm, now: float) -> bool:
        """Leaves the drafter out from now on. Returns False if it is left out already."""
        if self.left_out(now):
            return False
        trial_s = now - self._began if self._began else 0.0
        # most of a trial may be idle
        self._until = now + max(self._pause_s, min(COST * trial_s, LONGEST_S))
        self._pause_s = min(2.0 * self._pause_s, LONGEST_S)
        self.alarm, self._began, self._trial = alarm, 0.0, 0.0
        self.recent, self._squares, self._in_vain = BlockSums(), 0.0, 0.0
        self._bad = {kind: ON_TRIAL * most for kind, most in BAD.items()}
        return True

    def _found(self) -> Alarm | None:
        for kind, share in self._bad.items():
            if share > BAD[kind]:
                return kind
        if self._in_vain * self._usual > NONE:
            return Alarm.NOTHING_ACCEPTED
        if not self._kept(SHARE):
            return Alarm.COLLAPSE
        # a short block is worth no more than its slots
        usual = min(self.past.mean_worth, self.recent.mean_slots)
        poor = self.past.blocks >= SETTLED and self.recent.mean_worth < LITTLE * usual
        if self.alarm is None and poor and self.recent.blocks > RECENT / 2:
            self.past.blocks = self.past.worth = 0.0  # once: this worth may be the new usual
            return Alarm.NOTHING_ACCEPTED
        return None

    @property
    def _usual(self) -> float:
        """Usual ratio of accepted to promised, at least `HELD`: a version that never reached it has
        no past to be measured by."""
        return min(max(self.past.ratio, HELD), 1.0)

    def _expected(self) -> tuple[float, float]:
        """(tokens usually accepted of the recent promise, how many fewer may be chance)."""
        usual = self._usual * self.recent.promised
        return usual, CERTAIN * math.sqrt(
            self.past.spread * usual * self._squares / max(self.recent.blocks, 1.0)
        )

    @property
    def _tells(self) -> bool:
        """Whether so much was promised that accepting nothing at all could not be chance."""
        usual, noise = self._expected()
        return usual >= noise

    def _kept(self, share: float) -> bool:
        """Whether at least this share of the usual was accepted, or the shortfall may be chance."""
        usual, noise = self._expected()
        return self.recent.accepted >= min(share * usual, usual - noise)
