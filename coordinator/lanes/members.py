"""Who is in a lane: those in line for their prefill, those that are being prefilled, those in rounds."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

from coordinator.lanes import paging
from coordinator.lanes.facts import VerifierFacts
from coordinator.lanes.placed import Placed
from coordinator.lanes.request_state import RequestState


class Members:
    """Answers of one request share a prompt: the first of them has it run, the others come when it is in, and find all
    of it but the last page computed."""

    def __init__(self, facts: VerifierFacts, prefills: int) -> None:
        """prefills: at one time."""
        self._facts, self._prefills = facts, prefills
        self._placed: dict[int, Placed] = {}
        self._line: deque[Placed] = deque()
        self._prompts: dict[str, Placed] = {}  # by request: who has it run, where others wait for it
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
    def tracks(self) -> tuple[RequestState, ...]:
        return tuple(placed.track for placed in self._placed.values())

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

    def fits(self, track: RequestState) -> bool:
        """Whether the page pool, as far as this coordinator filled it, has room for one more, see `paging`."""
        total, size = self._facts.pages_total, self._facts.page_size
        if not total or self._longest + self._pages(track) <= total:
            return True  # without a look at everybody that runs, for every request
        return paging.fits(track, self.tracks, page_size=size, pages_total=total)

    def could_fit(self, track: RequestState) -> bool:
        """Whether it would fit if the pool were empty."""
        return not self._facts.pages_total or self._pages(track) <= self._facts.pages_total

    def _pages(self, track: RequestState) -> int:
        """Of a sequence at its longest."""
        return paging.pages(track.request.longest, self._facts.page_size or 1)

    def add(self, track: RequestState) -> None:
        placed = Placed(track)
        self._placed[placed.number] = placed
        self._longest += self._pages(track)
        self._line.append(placed)

    async def emptied(self) -> None:
        """Until nobody is there."""
        while self._placed:
            self._left.clear()
            await self._left.wait()

    def remove(self, placed: Placed) -> None:
        del self._placed[placed.number]
        self._left.set()
        self._longest -= self._pages(placed.track)
        self._prompt_over(placed)

    def next(self) -> Iterator[Placed]:
        """Whose turn it is, as many as may be prefilled now; they are being prefilled from then on."""
        held: list[Placed] = []
        while self._line and self.prefilling < self._prefills:
            placed = self._line.popleft()
            if self._placed.get(placed.number) is not placed:
                continue  # it ended in line
            request = placed.track.request
            if request.id in self._prompts:
                held.append(placed)
                continue
            if request.choices > 1:
                self._prompts[request.id] = placed
            self._turns += 1
            placed.admitted, placed.turn = True, self._turns
            self.prefilling += 1
            yield placed
        self._line.extendleft(reversed(held))

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
        if self._prompts.get(placed.track.request.id) is placed:
            del self._prompts[placed.track.request.id]
