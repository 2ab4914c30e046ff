"""Token slots in fixed-size pages.

Pure bookkeeping: knows page numbers, not tensors or devices. A key reserves room for its whole life and gives it back
whole. Contiguous runs are preferred, because a run can be sliced where scattered pages must be gathered.

For contexts that are written once and shared with nobody, as a drafter's are, this is all there is to know. A target's
pages are shared between prompts that begin alike, kept after their sequence and taken back under pressure; who holds a
page is then a count and not an owner, and `verify_service.kv_block_pool` keeps that count page by page. Neither is a
case of the other: a run that belongs to one key needs no holders, and a page with several holders belongs to no run.
Invariant: every page is either in exactly one free run or in exactly one reservation.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice


@dataclass(frozen=True, slots=True)
class Held:
    """What a worker's engine holds at this moment."""

    sequences: int
    pages_held: int
    pages_total: int


@dataclass(frozen=True, slots=True)
class _Run:
    """Pages first .. first + count - 1."""

    first: int
    count: int

    @property
    def end(self) -> int:
        return self.first + self.count


class PageTable:
    """Who holds which pages of one pool. Slot ids are page * page_size + offset."""

    def __init__(self, pages: int, page_size: int) -> None:
        if pages < 1 or page_size < 1:
            raise ValueError(f"a pool of {pages} pages of {page_size} slots is none")
        self.total = pages
        self.page_size = page_size
        self._free: list[_Run] = [_Run(0, pages)]  # ascending, never adjacent, never empty
        self._reserved: dict[Hashable, tuple[_Run, ...]] = {}
        self._held = 0

    @property
    def held(self) -> int:
        """Pages in reservations."""
        return self._held

    @property
    def sequences(self) -> int:
        """Keys with a reservation."""
        return len(self._reserved)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._reserved

    def pages_for(self, tokens: int) -> int:
        """Pages that `tokens` slots need; at least one."""
        return max(1, -(-tokens // self.page_size))

    def reserve(self, key: Hashable, tokens: int) -> bool:
        """Holds room for `tokens` slots under a new key; False, and nothing changed, when there is none."""
        if key in self._reserved:
            raise ValueError("the key already holds pages")
        wanted = self.pages_for(tokens)
        if wanted > self.total - self._held:
            return False
        self._reserved[key] = self._take(wanted)
        self._held += wanted
        return True

    def capacity(self, key: Hashable) -> int:
        """Slots reserved under `key`."""
        return sum(run.count for run in self._reserved[key]) * self.page_size

    def base(self, key: Hashable) -> int | None:
        """First slot when all of `key`'s slots are consecutive, else None."""
        runs = self._reserved[key]
        return runs[0].first * self.page_size if len(runs) == 1 else None

    def slots(self, key: Hashable, start: int, stop: int) -> Sequence[int]:
        """Slot ids of the key's tokens start .. stop - 1: a range where they are consecutive, else a list."""
        if not 0 <= start <= stop <= self.capacity(key):
            raise ValueError(f"tokens {start}..{stop} are outside a reservation of {self.capacity(key)}")
        runs = self._reserved[key]
        if len(runs) == 1:
            first = runs[0].first * self.page_size
            return range(first + start, first + stop)
        found: list[int] = []
        before = 0  # tokens that earlier runs hold
        for run in runs:
            length = run.count * self.page_size
            low, high = max(start - before, 0), min(stop - before, length)
            if low < high:
                first = run.first * self.page_size
                found.extend(range(first + low, first + high))
            before += length
        return found

    def pages(self, key: Hashable, tokens: int) -> Iterator[int]:
        """The first of the key's pages, as many as hold so many tokens."""
        runs = (range(run.first, run.end) for run in self._reserved[key])
        return islice(chain.from_iterable(runs), -(-tokens // self.page_size))

    def release(self, key: Hashable) -> int:
        """Gives the key's pages back; returns how many. An unknown key holds none."""
        runs = self._reserved.pop(key, ())
        freed = sum(run.count for run in runs)
        self._held -= freed
        if runs:
            self._free = _merged([*self._free, *runs])
        return freed

    def _take(self, wanted: int) -> tuple[_Run, ...]:
        """Free pages, in one run if any is long enough (the shortest such), else the longest runs first."""
        fitting = [run for run in self._free if run.count >= wanted]
        if fitting:
            return (self._cut(min(fitting, key=lambda run: (run.count, run.first)), wanted),)
        taken: list[_Run] = []
        while wanted:
            piece = self._cut(max(self._free, key=lambda run: (run.count, -run.first)), wanted)
            taken.append(piece)
            wanted -= piece.count
        return tuple(_merged(taken))

    def _cut(self, run: _Run, wanted: int) -> _Run:
        """The head of a free run, taken out of the free list."""
        count = min(wanted, run.count)
        index = self._free.index(run)
        rest = [_Run(run.first + count, run.count - count)] if run.count > count else []
        self._free[index : index + 1] = rest
        return _Run(run.first, count)


def _merged(runs: list[_Run]) -> list[_Run]:
    """Ascending, neighbours joined."""
    joined: list[_Run] = []
    for run in sorted(runs, key=lambda run: run.first):
        if joined and joined[-1].end == run.first:
            joined[-1] = _Run(joined[-1].first, joined[-1].count + run.count)
        else:
            joined.append(run)
    return joined
