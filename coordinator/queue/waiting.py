"""Who waits for a place, by tenant: first come, first served among one's own, fair among tenants, bounded in all.

When the line is full a newcomer of a tenant that waits with fewer takes the place of the newest one of the tenant that
waits with most: a flood is refused where it comes from. Whoever has had a place before cannot lose it that way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from coordinator.lanes.track import Track


class Waiting:
    """Tracks in line. Ask `Shares` whose turn it is."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[Track]] = {}  # none of them empty
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Track]:
        for line in self._lines.values():
            yield from line

    def __contains__(self, track: Track) -> bool:
        return track in self._lines.get(track.request.tenant, ())

    @property
    def tenants(self) -> tuple[str, ...]:
        """Those with somebody in line."""
        return tuple(self._lines)

    def of(self, tenant: str) -> int:
        """How many of a tenant wait."""
        return len(self._lines.get(tenant, ()))

    def first(self, tenant: str) -> Track:
        """Whose turn it is among a tenant's own."""
        return self._lines[tenant][0]

    def add(self, track: Track) -> None:
        """By arrival: who lost a place stands before everybody of its tenant who came later."""
        line = self._lines.setdefault(track.request.tenant, deque())
        number = track.sequence.number
        place = len(line)
        while place and line[place - 1].sequence.number > number:
            place -= 1
        line.insert(place, track)
        self._count += 1

    def remove(self, track: Track) -> None:
        tenant = track.request.tenant
        line = self._lines[tenant]
        line.remove(track)
        self._count -= 1
        if not line:
            del self._lines[tenant]

    def displaced_by(self, tenant: str, answers: int) -> list[Track]:
        """Who has to leave a full line for a newcomer of `tenant` with so many answers; nobody if that is unfair."""
        longest = max(self._lines, key=lambda each: len(self._lines[each]), default=tenant)
        if self.of(longest) - answers < self.of(tenant) + answers:
            return []
        fresh = [track for track in reversed(self._lines[longest]) if track.tally.placed is None]
        return fresh[:answers] if len(fresh) >= answers else []

    def overdue(self, before: float) -> list[Track]:
        """Those that came before this clock time and never had a place."""
        late = []
        for line in self._lines.values():
            for track in line:
                if track.tally.placed is not None:
                    continue
                if track.tally.arrived >= before:
                    break
                late.append(track)
        return late
