"""The cache of a simulated verifier: pages that are counted."""

from __future__ import annotations

from collections.abc import Callable


class Pages:
    """Keeps `KVCache`: pages are handed out as sequences grow."""

    def __init__(self, total: int, page_size: int, freed: Callable[[tuple[int, int]], object]) -> None:
        """total: 0 for no limit. freed: told of (sequence, epoch) that are gone."""
        self.total, self.page_size, self._freed = total, page_size, freed
        self.held: dict[tuple[int, int], int] = {}
        self._taken = 0

    def grow(self, sequence: int, epoch: int, committed_len: int, slots: int) -> int | None:
        held = self.held.get((sequence, epoch), 0)
        room = (held + self.total - self._taken) * self.page_size - committed_len if self.total else slots
        if room < 0:
            return None
        given = min(slots, room)
        wanted = max(-(-(committed_len + given) // self.page_size), held)
        self.held[sequence, epoch] = wanted
        self._taken += wanted - held
        return given

    def free(self, sequence: int, epoch: int) -> None:
        self._taken -= self.held.pop((sequence, epoch), 0)
        self._freed((sequence, epoch))

    @property
    def left(self) -> int:
        return self.total - self._taken
