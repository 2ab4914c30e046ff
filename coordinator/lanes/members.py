"""Who is in a lane: those in line for their prefill, those being prefilled, those in rounds; and
who is silent there.

Sequences are taken in by what is in use of the page pool, not by the longest they may become: most
end long before. When one that is running finds no page, its verifier takes the youngest out, and it
begins again later, with everything it has said; so the oldest always goes on, and everybody becomes
the oldest some day.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from coordinator.lanes.conduct import Conduct
from coordinator.lanes.facts import VerifierFacts
from coordinator.lanes.request_state import LifeEvent, Placed, RequestState
from dspark.rounds.control import PassReport

# tokens that each running sequence may add before a new one counts; spares most preemptions
GROWTH = 64
LOOKS = 4  # in the shortest time somebody may be silent


class Owner(Protocol):
    """Whoever placed sequences in a lane and hears what becomes of them: admission, or who runs a
    worker's first requests."""

    def ended(self, state: RequestState, error: Exception | None) -> None:
        """It is over: complete (`state.end` says how) or by an error."""

    def left(self, state: RequestState, event: LifeEvent) -> None:
        """It left the lane unfinished, and the event says why."""


def hand_back(owner: Owner, state: RequestState, event: LifeEvent) -> None:
    """It leaves a lane unfinished."""
    if not state.sequence.finished:
        state.sequence.apply(event)
        state.moved = state.moved or event is LifeEvent.MOVED
        owner.left(state, event)


class Members:
    """Answers of one request share a prompt: the first of them has it run, the others come when it
    is in, and find all of it but the last page computed."""

    def __init__(self, facts: VerifierFacts, prefills: int) -> None:
        """prefills: at one time."""
        self._facts, self._prefills = facts, prefills
        self._placed: dict[int, Placed] = {}
        self._line: deque[Placed] = deque()
        self._prompts: dict[
            str, Placed
        ] = {}  # by request: who has it run, where others wait for it
        self._left = asyncio.Event()  # somebody did
        self._longest = 0  # pages of all of them at their longest
        self.prefilling = 0  # admitted ones whose anchor is not there
        self._turns = self._latest = 0  # prompts asked for, and the latest of them that was run

    def __len__(self) -> int:
        return len(self._placed)

    def __iter__(self) -> Iterator[Placed]:
        """In order of arrival."""
        return iter(tuple(self._placed.values()))

    @property
    def states(self) -> tuple[RequestState, ...]:
        return tuple(placed.state for placed in self._placed.values())

    @property
    def waiting(self) -> int:
        """Those that have not joined the rounds."""
        return sum(not placed.prefilled for placed in self._placed.values())

    def get(self, number: int) -> Placed | None:
        return self._placed.get(number)

    def find(self, number: int, epoch: int) -> Placed | None:
        """Of whom the verifier may speak."""
        placed = self._placed.get(number)
        return placed if placed is not None and placed.admitted and placed.epoch == epoch else None

    def fits(self, state: RequestState) -> bool:
        """Whether the page pool, as far as this coordinator filled it, has room for one more."""
        total = self._facts.pages_total
        if not total or self._longest + self._pages(state.request.longest) <= total:
            return True  # without a look at everybody that runs, for every request
        held = sum(self._soon_held(placed.state) for placed in self._placed.values())
        return bool(self._placed) and held + self._soon_held(state) <= total

    def could_fit(self, state: RequestState) -> bool:
        """Whether it would fit if the pool were empty."""
        return (
            not self._facts.pages_total
            or self._pages(state.request.longest) <= self._facts.pages_total
        )

    def _soon_held(self, state: RequestState) -> int:
        """Pages of a sequence, some rounds from now."""
        return self._pages(min(len(state.answer.log) + GROWTH, state.request.longest))

    def _pages(self, tokens: int) -> int:
        return -(-tokens // (self._facts.page_size or 1))

    def add(self, state: RequestState) -> None:
        placed = Placed(state)
        self._placed[placed.number] = placed
        self._longest += self._pages(state.request.longest)
        self._line.append(placed)

    async def emptied(self) -> None:
        """Until nobody is there."""
        while self._placed:
            self._left.clear()
            await self._left.wait()

    def remove(self, placed: Placed) -> None:
        del self._placed[placed.number]
        self._left.set()
        self._longest -= self._pages(placed.state.request.longest)
        self._prompt_over(placed)

    def next(self) -> list[Placed]:
        """Whose turn it is, as many as may be prefilled now; they are being prefilled from now
        on."""
        admitted, held = list[Placed](), list[Placed]()
        while self._line and self.prefilling < self._prefills:
            placed = self._line.popleft()
            if self._placed.get(placed.number) is not placed:
                continue  # it ended in line
            request = placed.state.request
            if request.id in self._prompts:
                held.append(placed)
                continue
            if request.choices > 1:
                self._prompts[request.id] = placed
            self._turns += 1
            placed.admitted, placed.turn = True, self._turns
            self.prefilling += 1
            admitted.append(placed)
        self._line.extendleft(reversed(held))
        return admitted

    def joined(self, placed: Placed) -> None:
        """Its prompt has been run."""
        self._prompt_over(placed)
        self._latest = max(self._latest, placed.turn)
        placed.prefilled = True

    def overtook(self, placed: Placed) -> bool:
        """Whether a prompt that was asked for later has been run."""
        return placed.turn < self._latest

    def _prompt_over(self, placed: Placed) -> None:
        self.prefilling -= placed.admitted and not placed.prefilled
        if self._prompts.get(placed.state.request.id) is placed:
            del self._prompts[placed.state.request.id]


class Silence:
    """Who has said nothing for too long: a verifier, or one sequence at a verifier that speaks of
    others.

    A verifier that owes something and says nothing at all is lost. A sequence in rounds is reported
    every round; one whose reports stay away settles and moves, since whatever its verifier forgot,
    it knows nothing of it. Prompts are run in their order: one that was overtaken, or that waits
    while none gets on, is not coming. Nobody is late while the verifier has no page left, and
    nobody stands still for the window, for reports are acknowledged in the turn in which they come.
    Times are clock times.
    """

    def __init__(self, members: Members, waits: Conduct, now: float) -> None:
        self._members, self._waits = members, waits
        self._prompts_got_on = now
        self._no_page = False  # as of the last report

    @property
    def each_s(self) -> float:
        """From one look to the next."""
        return min(self._waits.prefill_deadline_s, self._waits.verify_deadline_s) / LOOKS

    def reported(self, said: PassReport, now: float) -> None:
        """It said this."""
        self._no_page = said.report.number > 0 and said.pages_free == 0
        if said.started is not None or said.prefill_tokens:
            self._prompts_got_on = now

    def verifier_lost(self, heard: float, now: float) -> str | None:
        """Why, or None. heard: when it said anything last."""
        since = min((placed.since for placed in self._members if placed.admitted), default=now)
        silent_s = now - max(heard, since)
        if (
            any(placed.prefilled for placed in self._members)
            and silent_s >= self._waits.verify_deadline_s
        ):
            return f"no verdict for {self._waits.verify_deadline_s:g} s"
        if self._members.prefilling and silent_s >= self._waits.prefill_deadline_s:
            return f"no prefill within {self._waits.prefill_deadline_s:g} s"
        return None

    def overdue(self, now: float) -> Iterator[Placed]:
        """Sequences that are to move; none that leaves already."""
        for placed in self._members:
            if not placed.admitted or placed.leaving is not None:
                continue
            if placed.prefilled:
                placed.heard = now if self._no_page else placed.heard
                late = now >= placed.heard + self._waits.verify_deadline_s
            else:
                got_on = (
                    placed.since
                    if self._members.overtook(placed)
                    else max(placed.since, self._prompts_got_on)
                )
                late = now >= got_on + self._waits.prefill_deadline_s
            if late:
                yield placed
