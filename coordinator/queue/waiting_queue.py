"""Queued sequences by tenant: in order of arrival within a tenant, fair among tenants, bounded in
all.

When the queue is full, a new request of a tenant with fewer queued sequences takes the place of the
newest ones of the tenant with most: a flood is refused at its source. A request loses its place as
a whole, as an answer's end by an error is that of all answers of its request; one of which any
answer has had a place before does not lose it.

Among tenants the order follows weighted tokens, a virtual token counter (Sheng et al., OSDI 2024):
the tenant that was given least is served next, so two tenants that both wait are never further
apart than one bound, and no place is left empty for it. A tenant that comes back after a while
starts level with those that wait: idleness is no credit. Tokens of prompts cost `PROMPT`, those of
answers `ANSWER`, when the sequence is placed and as they are committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import groupby

from coordinator.lanes.request_state import RequestState

PROMPT, ANSWER = 1.0, 2.0
MOST_TENANTS = 4096  # remembered without having a request; beyond, those given least are forgotten


class TenantShares:
    """Weighted tokens given to each tenant. Those of running sequences are read off them, so that
    no round has anything to report."""

    def __init__(self) -> None:
        self._settled: dict[str, float] = {}
        self._last = ""  # tenant that got a place last

    def given(self, tenants: Iterable[str], alive: Iterable[RequestState]) -> dict[str, float]:
        """Weighted tokens given to each of `tenants`, those of sequences in `alive` included."""
        sums = {tenant: self._settled.get(tenant, 0.0) for tenant in tenants}
        for state in alive:
            if state.request.tenant in sums:
                sums[state.request.tenant] += cost(state)
        return sums

    def arrives(self, tenant: str, waiting: Iterable[str], alive: Collection[RequestState]) -> None:
        """Lifts a tenant to the least given of those that wait, else to the one placed last. Call
        it before queueing a sequence of a tenant that has none queued."""
        others = list(waiting) or [self._last]
        if others == [tenant]:
            return  # it is alone, and level with itself
        given = self.given([tenant, *others], alive)
        least = min(given[other] for other in others)
        self._settled[tenant] = self._settled.get(tenant, 0.0) + max(least - given[tenant], 0.0)
        if len(self._settled) > MOST_TENANTS:
            self._forget({tenant, self._last, *others, *(state.request.tenant for state in alive)})

    def placed(self, tenant: str) -> None:
        """Notes that a sequence of the tenant was placed."""
        self._last = tenant

    def ended(self, state: RequestState) -> None:
        """Adds the cost of a sequence that ended to its tenant."""
        tenant = state.request.tenant
        self._settled[tenant] = self._settled.get(tenant, 0.0) + cost(state)

    def _forget(self, kept: set[str]) -> None:
        """Forgets the tenants given least: one that comes back is lifted to the others anyway."""
        able = sorted(
            (given, tenant) for tenant, given in self._settled.items() if tenant not in kept
        )
        for _, tenant in able[: len(self._settled) - MOST_TENANTS // 2]:
            del self._settled[tenant]


def cost(state: RequestState) -> float:
    """Weighted tokens that a sequence was given; 0 before it was first placed."""
    if state.stats.placed is None:
        return 0.0
    return PROMPT * len(state.request.prompt) + ANSWER * state.answer.since_resumed


class WaitingQueue:
    """Queued sequences by tenant; `TenantShares` gives the order among tenants."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[RequestState]] = {}  # none of them empty
        self.count = 0  # of sequences

    def __iter__(self) -> Iterator[RequestState]:
        for line in self._lines.values():
            yield from line

    def __contains__(self, state: RequestState) -> bool:
        return state in self._lines.get(state.request.tenant, ())

    @property
    def tenants(self) -> tuple[str, ...]:
        """Tenants with a queued sequence."""
        return tuple(self._lines)

    def of(self, tenant: str) -> int:
        """Number of a tenant's queued sequences."""
        return len(self._lines.get(tenant, ()))

    def first(self, tenant: str, able: Callable[[RequestState], bool]) -> RequestState | None:
        """A tenant's oldest queued sequence that is `able`; None if none is."""
        return next(filter(able, self._lines[tenant]), None)

    def add(self, state: RequestState) -> None:
        """Queues by arrival: one that lost its place is ahead of all later ones of its tenant."""
        line = self._lines.setdefault(state.request.tenant, deque())
        number = state.sequence.number
        place = len(line)
        while place and line[place - 1].sequence.number > number:
            place -= 1
        line.insert(place, state)
        self.count += 1

    def remove(self, state: RequestState) -> None:
        tenant = state.request.tenant
        line = self._lines[tenant]
        line.remove(state)
        self.count -= 1
        if not line:
            del self._lines[tenant]

    def displaced_by(self, tenant: str, answers: int) -> list[RequestState]:
        """Sequences of whole requests to take out of a full queue for a request of `tenant` with so
        many answers; none if that is unfair."""
        longest = max(self._lines, key=lambda each: len(self._lines[each]), default=tenant)
        fresh = (state for state in reversed(self._lines.get(longest, ())) if not state.begun)
        displaced: list[RequestState] = []
        for _, siblings in groupby(fresh, key=lambda state: state.request.id):
            if len(displaced) >= answers:
                break
            displaced += siblings
        left = self.of(longest) - len(displaced)
        return displaced if len(displaced) >= answers and left >= self.of(tenant) + answers else []

    def overdue(self, before: float) -> list[RequestState]:
        """Sequences of requests that arrived before this clock time and have had no place."""
        late = []
        for line in self._lines.values():
            for state in line:
                if state.begun:
                    continue
                if state.stats.arrived >= before:
                    break
                late.append(state)
        return late
