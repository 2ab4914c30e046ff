"""Whether a drafter still drafts as it did. An alarm leaves it out, and after a while it is tried
again. Pure.

Nothing here can hurt an answer: what a drafter spoils is speed. Four things are told apart: blocks
that cannot have been drafted (ids that are none, confidences that are no numbers), blocks that do
not come or are empty, blocks of which far less is accepted than their confidences promise, and
blocks that are worth next to nothing beside those that this version made before. The planner learns
of the last two by itself, but slowly, since it must not follow every passage of a text; a watchdog
may be quick, since all it asks for is a factor.

Sums fade by blocks, and what is usual is only learned while all is well. Whom an alarm is of is
left out for a pause; then it is on trial with one sequence, which ends well, or in a pause that is
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

RECENT = 40.0  # blocks after which what was seen weighs a third
PAST = 2048.0  # the same of what is usual
SHARE = 0.35  # of what is usually kept of a promise; less is a collapse
LITTLE = 0.15  # of the usual worth of a block
NONE = 24.0  # first slots that were promised in a row, in vain: a chance of at most exp(-24)
CERTAIN = 4.0  # standard deviations by which less than usual is accepted
# tokens that agreement counts for; variance of what is accepted, by its mean
PRIOR, SPREAD = (
    16.0,
    2.0,
)
SETTLED = 256  # blocks that make a past
BAD_MEMORY = 64.0  # passes
ON_TRIAL = 0.8  # of what is too much, to begin with: who had an alarm has less credit
TRIAL = 32  # blocks, of which as much as HELD of the usual is accepted
LONGEST_TRIAL = 4 * TRIAL  # where blocks promise so little that fewer tell nothing
HELD = 0.5
PAUSE_S, LONGEST_S = 10.0, 160.0
COST = 8.0  # times what a trial took: the pause behind it is no shorter, as far as LONGEST_S allows


class Alarm(enum.Enum):
    """As metrics name it."""

    MALFORMED = "malformed"
    NOTHING_DRAFTED = "nothing drafted"
    NOTHING_ACCEPTED = "nothing accepted"
    COLLAPSE = "collapse"

    @property
    def useless(self) -> bool:
        """Whether there are no blocks at all, so that leaving the drafter out is nobody's
        choice."""
        return self in (Alarm.MALFORMED, Alarm.NOTHING_DRAFTED)


# Share of blocks that are none; what no healthy drafter sends is borne less often than what comes
# late. A faded share reaches what it fades to only in the end: half of all blocks passes a third
# within a hundred passes.
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
    """Of sound blocks, fading."""

    blocks: float = 0.0
    promised: float = 0.0  # tokens, of the slots that were verified
    accepted: float = 0.0
    squared: float = 0.0  # sum of (accepted - promised)^2
    worth: float = 0.0  # accepted tokens, and what was promised behind them where nobody looked
    slots: float = 0.0  # that were drafted

    def add(self, seen: BlockSums, memory: float) -> None:
        kept = math.exp(-seen.blocks / memory)
        for name in BlockSums.__slots__:
            setattr(self, name, kept * getattr(self, name) + getattr(seen, name))

    @property
    def ratio(self) -> float:
        """Accepted over promised, shrunk to agreement."""
        return (self.accepted + PRIOR) / (self.promised + PRIOR)

    @property
    def spread(self) -> float:
        """Variance of what a block has accepted over its mean."""
        return (self.squared + SPREAD * PRIOR) / (self.promised * self.ratio + PRIOR)

    @property
    def mean_worth(self) -> float:
        return self.worth / self.blocks if self.blocks else 0.0

    @property
    def mean_slots(self) -> float:
        return self.slots / self.blocks if self.blocks else 0.0


@dataclass(slots=True)
class DraftedPass(BlockSums):
    """What the rounds of one pass say of one drafter."""

    malformed: int = 0
    missing: int = 0
    # sound ones whose answer keeps a form, which drafters know nothing of: what is kept says
    # nothing
    formed: int = 0
    first: float = 0.0  # promised of the first slots that were verified


def drafted_passes(rounds: Sequence[RoundReport], formed: Sequence[bool]) -> dict[int, DraftedPass]:
    """By drafter's number. A round without a block that is not its drafter's fault says nothing.
    formed: of each round, whether its answer keeps a form."""
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
            behind = (
                _survivals(each.confidence[each.verified :])
                if each.accepted == each.verified
                else 0.0
            )
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
    """Of one drafter process, as one verifier finds it. past: of its version, shared by its
    processes."""

    def __init__(self, past: BlockSums) -> None:
        self.past, self.recent = past, BlockSums()
        # of the weights of recent blocks: the first ones hold all of their variance
        self._squares = 0.0
        self.alarm: Alarm | None = None  # None: all is well
        self._in_vain = 0.0  # first slots that were promised since one was accepted
        self._bad = dict.fromkeys(BAD, 0.0)
        self._until = self._began = 0.0  # of the pause, of the trial behind it
        self._trial = 0.0  # blocks that were seen in it
        self._pause_s = PAUSE_S

    def left_out(self, now: float) -> bool:
        """Whether nobody shall be with it."""
        return self.alarm is not None and now < self._until

    def pause_left_s(self, now: float) -> float:
        return max(self._until - now, 0.0) if self.alarm is not None else 0.0

    @property
    def accepted_length(self) -> float:
        """Mean tokens of a round with a block, of late, the target's own among them; 0 before there
        were any."""
        return 1.0 + self.recent.accepted / self.recent.blocks if self.recent.blocks else 0.0

    def observe(self, seen: DraftedPass, now: float) -> bool:
        """Returns whether there is an alarm now, or none any more, that was not before."""
        if self.left_out(now):
            return False
        if self.alarm is not None and not self._began:
            self._began = now
        asked = seen.blocks + seen.formed + seen.malformed + seen.missing
        for kind, count in (
            (Alarm.MALFORMED, seen.malformed),
            (Alarm.NOTHING_DRAFTED, seen.missing),
        ):
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
        """It is left out from now on, unless it is already. Returns whether there is something to
        tell."""
        if self.left_out(now):
            return False
        trial_s = now - self._began if self._began else 0.0
        # most of a trial may be idle
        self._until = now + max(self._pause_s, min(COST * trial_s, LONGEST_S))
        self._pause_s = min(2.0 * self._pause_s, LONGEST_S)
        self.alarm, self._began, self._trial, self.recent, self._squares = (
            alarm,
            0.0,
            0.0,
            BlockSums(),
            0.0,
        )
        self._bad, self._in_vain = {kind: ON_TRIAL * most for kind, most in BAD.items()}, 0.0
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
            self.past.blocks = self.past.worth = 0.0  # once: from now on this may be what is usual
            return Alarm.NOTHING_ACCEPTED
        return None

    @property
    def _usual(self) -> float:
        """Accepted over promised; a version that never kept half of it has no past to be measured
        by."""
        return min(max(self.past.ratio, HELD), 1.0)

    def _expected(self) -> tuple[float, float]:
        """(tokens that are usually accepted of what was promised, by how many fewer may be
        chance)."""
        usual = self._usual * self.recent.promised
        return usual, CERTAIN * math.sqrt(
            self.past.spread * usual * self._squares / max(self.recent.blocks, 1.0)
        )

    @property
    def _tells(self) -> bool:
        """Whether to accept nothing at all would be no chance."""
        usual, noise = self._expected()
        return usual >= noise

    def _kept(self, share: float) -> bool:
        """Whether at least this share of the usual was accepted of what was promised, as far as
        anybody can tell."""
        usual, noise = self._expected()
        return self.recent.accepted >= min(share * usual, usual - noise)
