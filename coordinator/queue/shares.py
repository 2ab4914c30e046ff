"""What every tenant has been given, in weighted tokens: a virtual token counter (Sheng et al., OSDI 2024).

Whoever has been given least is served next, so two tenants that both wait are never further apart than one bound, and
no place is left empty for it. A tenant that comes back after a while starts level with those that wait: idleness is no
credit. Tokens of prompts cost `PROMPT`, those of answers `ANSWER`, when the sequence is placed and as they are said.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.lanes.track import Track

PROMPT, ANSWER = 1.0, 2.0
MOST_TENANTS = 4096  # remembered without having a request; beyond, those given least are forgotten


class Shares:
    """Tokens of sequences that have not ended are read off them, so that no round has anything to tell."""

    def __init__(self) -> None:
        self._settled: dict[str, float] = {}
        self._last = ""  # tenant that got a place last

    def given(self, tenants: Iterable[str], alive: Iterable[Track]) -> dict[str, float]:
        """To each of `tenants`, with what their sequences among `alive` have had so far."""
        sums = {tenant: self._settled.get(tenant, 0.0) for tenant in tenants}
        for track in alive:
            if track.request.tenant in sums:
                sums[track.request.tenant] += cost(track)
        return sums

    def arrives(self, tenant: str, waiting: Iterable[str], alive: Iterable[Track]) -> None:
        """Call it before a tenant that has nobody waiting lines up: it starts level with those that do."""
        others = [other for other in dict.fromkeys(waiting) if other != tenant] or [self._last]
        if others == [tenant]:
            return  # it is alone, and level with itself
        given = self.given([tenant, *others], alive)
        least = min(given[other] for other in others)
        self._settled[tenant] = self._settled.get(tenant, 0.0) + max(least - given[tenant], 0.0)
        if len(self._settled) > MOST_TENANTS:
            self._forget({tenant, self._last, *others, *(track.request.tenant for track in alive)})

    def placed(self, tenant: str) -> None:
        """One of its sequences got a place."""
        self._last = tenant

    def ended(self, track: Track) -> None:
        """It is over; what it had is settled."""
        tenant = track.request.tenant
        self._settled[tenant] = self._settled.get(tenant, 0.0) + cost(track)

    def _forget(self, kept: set[str]) -> None:
        """Who comes back is lifted to the others anyway, so the least given to lose nothing."""
        able = sorted((given, tenant) for tenant, given in self._settled.items() if tenant not in kept)
        for _, tenant in able[: len(self._settled) - MOST_TENANTS // 2]:
            del self._settled[tenant]


def cost(track: Track) -> float:
    """Weighted tokens a sequence has been given; none before it was placed first."""
    if track.tally.placed is None:
        return 0.0
    return PROMPT * len(track.request.prompt) + ANSWER * track.answer.log.answered
