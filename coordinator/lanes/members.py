"""The sequences of a lane: queued for their prefill, in prefill, in rounds; and which are overdue.

Sequences are admitted by the pages in use, not by the longest they may become: most end long
before. When a running one finds no page, its verifier takes out the youngest, which begins again
later with its committed tokens. So the oldest always continues, and each becomes the oldest in
time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Protocol

from coordinator.config import CoordinatorConfig
from coordinator.lanes.facts import VerifierFacts
from coordinator.lanes.request_state import LifeEvent, PlacedSequence, RequestState
from dspark.rounds.control import PassReport

# tokens of growth counted for each running sequence; spares most preemptions
GROWTH = 64
LOOKS = 4  # checks within the shorter deadline


class Owner(Protocol):
    """The object that placed sequences in a lane and is notified of their fate: the scheduler, or
    the one that runs a worker's first requests."""

    def ended(self, state: RequestState, error: Exception | None) -> None:
        """The sequence ended: complete (`state.end` says how) or by an error."""

    def left(self, state: RequestState, event: LifeEvent) -> None:
        """The sequence left the lane unfinished; the event says why."""


_AGAIN = {  # why a prompt is run again, as metrics name it
    LifeEvent.PREEMPTED: "preempted",
    LifeEvent.MOVED: "handover",
    LifeEvent.ORPHANED: "handover",
}


def hand_back(owner: Owner, state: RequestState, event: LifeEvent) -> None:
    """Applies `event` to a sequence that is not finished, and returns it to its owner."""
    if not state.sequence.finished:
        state.sequence.apply(event)
        state.why_prefilled = _AGAIN.get(event, state.why_prefilled)
        owner.left(state, event)


class Members:
    """The sequences of one lane. Answers of one request share a prompt: it is run for the first of
    them, and the others enter after that and find all of it but the last page computed."""

    def __init__(self, facts: VerifierFacts, prefills: int) -> None:
        """prefills: most at one time."""
        self._facts, self._prefills = facts, prefills
        self._placed: dict[int, PlacedSequence] = {}
        self._line: deque[PlacedSequence] = deque()
        self._prompts: dict[
            str, PlacedSequence
        ] = {}  # by request: the prefill that its answers wait for
        self._computed = Counter[str]()  # by request: its answers here whose prefill has ended
        self._longest = 0  # pages of all sequences at their longest
        self.prefilling = 0  # admitted, without an anchor yet
        self._turns = self._latest = 0  # admissions, and the latest one whose prefill ended

    def __len__(self) -> int:
        return len(self._placed)

    def __iter__(self) -> Iterator[PlacedSequence]:
        """Iterates over a copy, in order of arrival."""
        return iter(tuple(self._placed.values()))

    @property
    def states(self) -> tuple[RequestState, ...]:
        return tuple(placed.state for placed in self._placed.values())

    @property
    def waiting(self) -> int:
        """Number of sequences that have not joined the rounds."""
        return sum(not placed.prefilled for placed in self._placed.values())

    def get(self, number: int) -> PlacedSequence | None:
        return self._placed.get(number)

    def find(self, number: int, epoch: int) -> PlacedSequence | None:
        """The admitted sequence of this epoch, the only one a verifier may report; None if
        unknown."""
        placed = self._placed.get(number)
        return placed if placed is not None and placed.admitted and placed.epoch == epoch else None

    def fits(self, state: RequestState) -> bool:
        """Whether the page pool, as far as this coordinator filled it, has room for one more."""
        total = self._facts.pages_total
        if not total or self._longest + self._pages(state.request.longest) <= total:
            return True  # fits at full length: spares a sum over all sequences
        if not self.could_fit(state):
            return False  # it would never end here
        held = sum(self._soon_held(placed.state) for placed in self._placed.values())
        return held + self._soon_held(state) <= total

    def could_fit(self, state: RequestState) -> bool:
        """Whether it would fit if the pool were empty."""
        total = self._facts.pages_total
        return not total or self._pages(state.request.longest) <= total

    def _soon_held(self, state: RequestState) -> int:
        """Pages of a sequence once it has grown by `GROWTH` tokens."""
        return self._pages(min(state.answer.committed_len + GROWTH, state.request.longest))

    def _pages(self, tokens: int) -> int:
        return -(-tokens // (self._facts.page_size or 1))

    def add(self, state: RequestState) -> None:
        placed = PlacedSequence(state)
        self._placed[placed.number] = placed
        self._longest += self._pages(state.request.longest)
        self._line.append(placed)

    def remove(self, placed: PlacedSequence) -> None:
        del self._placed[placed.number]
        request = placed.state.request
        self._longest -= self._pages(request.longest)
        self._prompt_over(placed)
        if placed.prefilled:
            self._computed[request.id] -= 1
            if not self._computed[request.id]:
                del self._computed[request.id]

    def next(self) -> list[PlacedSequence]:
        """Admits and returns the next queued sequences, as many as may be prefilled now."""
        admitted, held = list[PlacedSequence](), list[PlacedSequence]()
        while self._line and self.prefilling < self._prefills:
            placed = self._line.popleft()
            if self._placed.get(placed.number) is not placed:
                continue  # it ended while queued
            request = placed.state.request
            if request.id in self._prompts:
                held.append(placed)
                continue
            if request.choices > 1 and not self._computed[request.id]:
                self._prompts[request.id] = placed
            self._turns += 1
            placed.admitted, placed.turn = True, self._turns
            self.prefilling += 1
            admitted.append(placed)
        self._line.extendleft(reversed(held))
        return admitted

    def joined(self, placed: PlacedSequence) -> None:
        """Notes that its prefill ended: it joins the rounds."""
        self._prompt_over(placed)
        self._computed[placed.state.request.id] += 1
        self._latest = max(self._latest, placed.turn)
        placed.prefilled = True

    def overtook(self, placed: PlacedSequence) -> bool:
        """Whether the prefill of a later admission has ended."""
        return placed.turn < self._latest

    def _prompt_over(self, placed: PlacedSequence) -> None:
        self.prefilling -= placed.admitted and not placed.prefilled
        if self._prompts.get(placed.state.request.id) is placed:
            del self._prompts[placed.state.request.id]


class SilenceTimeouts:
    """Timeouts: of a silent verifier, and of one sequence at a verifier that reports others.

    A verifier that owes a report and sends nothing at all is lost. A sequence in rounds is reported
    every round; one whose reports are missing is settled and moved, since its verifier may have
    forgotten it. Prompts are run in order: one that was overtaken, or that waits while no prefill
    progresses, is overdue. No sequence in rounds is late while the verifier has no page left, and
    none waits for the window, since reports are acknowledged in the turn of the event loop in which
    they arrive. Times are clock times.
    """

    def __init__(self, members: Members, config: CoordinatorConfig, now: float) -> None:
        self._members, self._config = members, config
        self._prompts_got_on = now
        self._no_page = False  # as of the last report

    @property
    def each_s(self) -> float:
        """Seconds from one check to the next."""
        return min(self._config.prefill_deadline_s, self._config.verify_deadline_s) / LOOKS

    def reported(self, said: PassReport, now: float) -> None:
        """Notes a report of the verifier."""
        self._no_page = said.report.number > 0 and said.pages_free == 0
        if said.started is not None or said.prefill_tokens:
            self._prompts_got_on = now

    def got_on(self, now: float) -> None:
        """Notes that a prompt got on in passes of its own, which end with no report."""
        self._prompts_got_on = now

    def verifier_lost(self, heard: float, now: float) -> str | None:
        """Why the verifier counts as lost, or None. heard: clock time of its last message."""
        since = min((placed.since for placed in self._members if placed.admitted), default=now)
        silent_s = now - max(heard, since)
        verdict_s, prefill_s = self._config.verify_deadline_s, self._config.prefill_deadline_s
        if silent_s >= verdict_s and any(placed.prefilled for placed in self._members):
            return f"no verdict for {verdict_s:g} s"
        if silent_s >= prefill_s and self._members.prefilling:
            return f"no prefill within {prefill_s:g} s"
        return None

    def overdue(self, now: float) -> Iterator[PlacedSequence]:
        """Sequences whose report or prefill is overdue, without those that are leaving already."""
        for placed in self._members:
            if not placed.admitted or placed.leaving is not None:
                continue
            if placed.prefilled:
                placed.heard = now if self._no_page else placed.heard
                late = now >= placed.heard + self._config.verify_deadline_s
            else:
                got_on = placed.since
                if not self._members.overtook(placed):
                    got_on = max(got_on, self._prompts_got_on)
                late = now >= got_on + self._config.prefill_deadline_s
            if late:
                yield placed
