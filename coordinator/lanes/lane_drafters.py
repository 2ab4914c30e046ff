"""The drafters of a lane, by the number that plans name; chooses the least loaded that fits.

A drafter holds soft state only: losing one costs speed, never an answer. Health is per pair
(invariant R10 of `dspark.rounds`): a drafter that this process cannot reach gets no new sequence,
and its own stay until the verifier, which has its own connection to it, reports it gone. A drafter
with an alarm of the watchdog gets one sequence at a time as a trial, once its pause is over.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import structlog

from coordinator.lanes.facts import DrafterPort
from coordinator.lanes.lane_context import LaneContext
from coordinator.lanes.request_state import RequestState
from coordinator.planning.lane_plans import DrafterCost
from coordinator.planning.watchdog import Alarm, BlockSums, DrafterWatch, drafted_passes
from dspark.rounds.control import DrafterAt, DrafterUse
from dspark.rounds.events import RoundReport
from dspark.rounds.policy import Adaptive

log = structlog.get_logger("dspark.watchdog")

AGAIN_S = 2.0  # before a drafter that the verifier lost, or that had no room, is named to it again
LONGEST_S = 16.0  # the same for one that is lost again and again
# After a drafter had no room it gets new sequences one at a time for so long. Of several at once it
# refuses one without saying which, and all that it has not drafted for yet are taken off it.
TIGHT_S = 30.0


class _Known:
    """One drafter process, as the verifier of this lane sees it."""

    def __init__(self, number: int, port: DrafterPort, past: BlockSums) -> None:
        self.number, self.port, self.watch = number, port, DrafterWatch(past)
        self.there = True  # this process reaches it
        self.leaves = False
        self.not_before = 0.0  # clock time before which it is not named to the verifier
        self.pause_s = AGAIN_S
        self.sequences = self.fed = 0  # of this lane; those that it has drafted for
        self.tight_until = 0.0  # clock time, see TIGHT_S
        self.told: DrafterUse | None = None

    @property
    def use(self) -> DrafterUse:
        if self.there:
            return DrafterUse.NO_NEW if self.leaves else DrafterUse.YES
        return DrafterUse.NO_NEW if self.sequences else DrafterUse.GONE


class LaneDrafters:
    """The drafters of one lane. `news` yields the changes to send to its verifier."""

    def __init__(self, lane: str, shared: LaneContext) -> None:
        self._lane, self._load = lane, shared.load
        self._clock, self._monitor = shared.clock, shared.monitor
        self._metrics, self._bypass = shared.metrics, shared.config.bypass
        self._past: dict[str, BlockSums] = {}  # by version
        self._by_number: dict[int, _Known] = {}
        self._numbers = itertools.count(1)  # never given to another process

    @property
    def drafters(self) -> tuple[DrafterPort, ...]:
        return tuple(each.port for each in self._by_number.values() if each.there)

    def costs(self) -> list[DrafterCost]:
        """Costs of the drafters within reach, for plans; one left out for an alarm gets one
        sequence at most."""
        there = [each for each in self._by_number.values() if each.there]
        return [
            DrafterCost(each.port.facts.block_size, each.port.facts.cost, shares=self._shares(each))
            for each in there
        ]

    def joined(self, port: DrafterPort) -> None:
        """Adds a drafter; one that returns keeps its number while sequences are assigned to it."""
        facts, all_known = port.facts, self._by_number.values()
        known = next((k for k in all_known if k.port.facts.incarnation == facts.incarnation), None)
        if known is None:
            past = self._past.setdefault(facts.fingerprint, BlockSums())
            known = _Known(next(self._numbers), port, past)
            self._by_number[known.number] = known
        else:
            self._load[port] += known.sequences
        known.port, known.there, known.leaves = port, True, False

    def left(self, port: DrafterPort) -> None:
        """Marks a drafter that this process no longer reaches."""
        known = self._of(port)
        if known is not None:
            known.there = False

    def leaves(self, port: DrafterPort, leaves: bool) -> bool:
        """Sets whether a drafter gets no new sequence, and returns whether that is new; its own
        move once another drafter fits."""
        known = self._of(port)
        if known is None or known.leaves is leaves:
            return False
        known.leaves = leaves
        return True

    def lost(self, number: int, why: str) -> None:
        """Pauses a drafter that was lost or has no room; some reasons raise an alarm."""
        known = self._by_number.get(number)
        if known is None:
            return
        alarm = _LOST_BY.get(why.partition(":")[0])
        if alarm is not None and known.watch.raised(alarm, self._clock.time()):
            self._tell(known)
        now = self._clock.time()
        if why == "full":
            known.tight_until = now + TIGHT_S
        if now >= known.not_before:  # else one of several that it had no room for at once
            known.not_before = now + known.pause_s
            known.pause_s = min(2.0 * known.pause_s, LONGEST_S)
        known.told = DrafterUse.NO_NEW  # so that it is sent again

    def drafted(self, number: int, *, first: bool) -> None:
        """Resets the pause of a drafter: one of its blocks arrived. first: for its sequence."""
        if number in self._by_number:
            self._by_number[number].pause_s = AGAIN_S
            self._by_number[number].fed += first

    def observe(self, rounds: Sequence[RoundReport], formed: Sequence[bool]) -> bool:
        """Gives the finished rounds of a pass to the watchdog. formed: for each, whether its answer
        has a constraint. Returns whether an alarm was raised or cleared."""
        changed = False
        for number, seen in drafted_passes(rounds, formed).items():
            known = self._by_number.get(number)
            if known is None:
                continue
            if known.watch.observe(seen, self._clock.time()):
                self._tell(known)
                changed = True
            at = {"drafter": known.port.facts.fingerprint[:16], "lane": self._lane}
            self._metrics.drafter_accepted_length.labels(**at).set(known.watch.accepted_length)
            self._metrics.drafter_promise_kept.labels(**at).set(known.watch.recent.ratio)
        return changed

    def _tell(self, known: _Known) -> None:
        """Reports an alarm, or its end, to metrics and log."""
        alarm, version = known.watch.alarm, known.port.facts.fingerprint
        whose = {"drafter": known.port.facts.name, "version": version, "verifier": self._lane}
        self.show()
        if alarm is None:
            log.info("watchdog.recovered", **whose)
            return
        self._metrics.drafter_alarms.labels(drafter=version[:16], reason=alarm.value).inc()
        log.error(
            "watchdog.alarm",
            **whose,
            reason=alarm.value,
            tried_again_in_s=round(known.watch.pause_left_s(self._clock.time()), 1),
            effect="its sequences go to another drafter, or on without drafts",
        )

    def why_left_out(self, port: DrafterPort) -> str:
        """For people: why a drafter is left out; empty without an alarm."""
        known = self._of(port)
        if known is None or known.watch.alarm is None:
            return ""
        left_s = known.watch.pause_left_s(self._clock.time())
        tried = f"tried again in {left_s:.0f} s" if left_s > 0.0 else "on trial"
        return f"left out by {self._lane} ({known.watch.alarm.value}), {tried}"

    def show(self) -> None:
        """Puts the number of drafters that are left out into the metrics."""
        left_out = sum(each.watch.alarm is not None for each in self._by_number.values())
        self._metrics.drafters_left_out.labels(lane=self._lane).set(left_out)

    def hide(self) -> None:
        self._metrics.drafters_left_out.labels(lane=self._lane).set(0)

    def choose(self, state: RequestState, besides: int = 0) -> int:
        """The least loaded drafter, except `besides`, that may serve this sequence; 0 for none."""
        known = self._by_number.values()
        able = [each for each in known if each.number != besides and self._able(each, state)]
        if not able:
            return 0
        return min(able, key=lambda each: (self._load[each.port], each.port.facts.name)).number

    def stays(self, number: int, state: RequestState, *, fed: bool) -> bool:
        """Whether a drafter may go on drafting for a sequence. fed: it did so before, so the
        verifier may still reach one that this process has lost."""
        known = self._by_number[number]
        return self.may_stay(number, state) and not known.leaves and (fed or known.there)

    def may_stay(self, number: int, state: RequestState) -> bool:
        """The same while no other drafter fits: one that will leave may stay."""
        known = self._by_number[number]
        left_out = self._heeds(known, state) and known.watch.left_out(self._clock.time())
        return self._fits(known.port, state) and not left_out

    def on_trial(self, number: int, state: RequestState) -> bool:
        """Whether a sequence of this drafter is its trial after an alarm."""
        known = self._by_number.get(number)
        return known is not None and self._heeds(known, state)

    def attach(self, number: int, state: RequestState) -> None:
        known = self._by_number[number]
        known.sequences += 1
        self._load[known.port] += 1
        state.last_drafter = known.port.facts.name

    def detach(self, number: int, *, fed: bool) -> None:
        known = self._by_number.get(number)
        if known is not None:
            known.sequences -= 1
            known.fed -= fed
            if known.there:
                self._load[known.port] -= 1

    def why_nobody(self, state: RequestState) -> str:
        """Why a sequence has no drafter."""
        there = self.drafters
        if there and not any(
            self._monitor.trusts(each.facts.fingerprint, state.request.params) for each in there
        ):
            return "distrusted"
        if there and not any(_reaches(each, state) for each in there):
            return "too_long"
        if any(each.there and each.watch.alarm is not None for each in self._by_number.values()):
            return "left_out"
        return "no_drafter"

    def fingerprint(self, number: int) -> str:
        known = self._by_number.get(number)
        return known.port.facts.fingerprint if known is not None else ""

    def name(self, number: int) -> str:
        known = self._by_number.get(number)
        return known.port.facts.name if known is not None else ""

    def news(self) -> Iterator[DrafterAt]:
        """Yields drafters whose use changed since the last call; forgets those that are gone."""
        for known in list(self._by_number.values()):
            use, facts = known.use, known.port.facts
            if use is DrafterUse.GONE:
                del self._by_number[known.number]
                self.show()
            if use is known.told or (known.told is None and use is DrafterUse.GONE):
                continue
            if self._clock.time() >= known.not_before or use is not DrafterUse.YES:
                known.told = use
                yield DrafterAt(known.number, facts.endpoint, facts.incarnation, use)

    def _of(self, port: DrafterPort) -> _Known | None:
        return next((each for each in self._by_number.values() if each.port is port), None)

    def _able(self, known: _Known, state: RequestState) -> bool:
        free = known.there and not known.leaves and self._clock.time() >= known.not_before
        named = state.request.drafter in ("", known.port.facts.name)
        tried = known.watch.alarm is not None and self._heeds(known, state)
        room = not tried or (known.sequences == 0 and not known.watch.left_out(self._clock.time()))
        tight = self._clock.time() < known.tight_until and known.sequences > known.fed
        return free and named and room and not tight and self._fits(known.port, state)

    def _heeds(self, known: _Known, state: RequestState) -> bool:
        """Whether a drafter's alarm matters to a sequence; with fixed slots drafts need not pay."""
        alarm = known.watch.alarm
        return alarm is not None and (
            alarm.useless or (self._bypass and isinstance(state.request.policy, Adaptive))
        )

    def _shares(self, known: _Known) -> bool:
        """Whether adaptive sequences use a drafter like any other: where they may not go without
        drafts, most alarms do not matter to them."""
        alarm = known.watch.alarm
        return alarm is None or not (alarm.useless or self._bypass)

    def _fits(self, port: DrafterPort, state: RequestState) -> bool:
        return _reaches(port, state) and self._monitor.trusts(
            port.facts.fingerprint, state.request.params
        )


_LOST_BY = {"malformed": Alarm.MALFORMED, "silent": Alarm.NOTHING_DRAFTED}


def _reaches(port: DrafterPort, state: RequestState) -> bool:
    """Whether the drafter's context has room for a sequence of this length and a block."""
    return state.answer.committed_len <= port.facts.context_length - port.facts.block_size
