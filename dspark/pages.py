"""Page tables of a paged cache, a target's or a drafter's: allocate all that a step needs, then run
it.

Pure bookkeeping over page numbers, without tensors or devices. A page may have several holders
(sequences that share a prefix, the prefix cache); it is free when it has none. A sequence is opened
with the length it may reach and placed at a free run of that many pages, or of as many as it begins
with, its wish: consecutive slots can be read as a view, scattered pages must be gathered. The wish
is no reservation: allocations avoid it while other pages are free, then take from its far end. A
search takes time with the size of the pool, so it is done for SPARE pages at once.

Invariant: `free` counts the pages without a holder; a page with several holders is never written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt

Slots = range | npt.NDArray[np.int64]
SPARE = 32  # pages that are searched for at once
SHORT = 16  # numbers of a run, up to which an array of its own takes longer than they do


@dataclass(frozen=True, slots=True)
class EngineUsage:
    """Sequences and pages that a worker's engine holds at this moment."""

    sequences: int
    pages_held: int
    pages_total: int


@dataclass(slots=True)
class _Table:
    """Page table of one sequence, in the order of its tokens."""

    pages: list[int] = field(default_factory=list)
    in_row: bool = True
    wish: tuple[int, int] = (0, 0)  # pages first .. last - 1 that it prefers to grow into
    # slot ids, built once the pages are not consecutive
    slots: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    numbered: int = 0  # pages that are in `slots`


class KVBlockPool:
    """Allocates pages to sequences. Slot ids are page * page_size + offset."""

    def __init__(self, pages: int, page_size: int) -> None:
        if pages < 1 or page_size < 1:
            raise ValueError(f"a pool of {pages} pages of {page_size} slots is none")
        self.total = self.free = pages
        self.page_size = page_size
        self._holders = np.zeros(pages, np.int32)
        self._wished = np.zeros(pages, np.bool_)
        self._kept = np.zeros(pages, np.bool_)
        self.idle = 0  # kept pages without another holder
        # for sequences beside their wishes, next one last; some are held or wished for by now
        self._spare: deque[int] = deque(maxlen=pages)
        self._tables: dict[Hashable, _Table] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._tables

    def pages_for(self, tokens: int) -> int:
        """Pages that `tokens` slots need."""
        return -(-tokens // self.page_size)

    def missing(self, key: Hashable, tokens: int) -> int:
        """How many more pages the sequence needs to hold `tokens`."""
        return max(self.pages_for(tokens) - len(self._tables[key].pages), 0)

    def room(self, key: Hashable) -> int:
        """How many tokens the sequence's pages can hold."""
        return len(self._tables[key].pages) * self.page_size

    def holders(self, page: int) -> int:
        return int(self._holders[page])

    def pages(self, key: Hashable) -> Sequence[int]:
        """Pages of a sequence, in the order of its tokens."""
        return self._tables[key].pages

    def open(self, key: Hashable, tokens: int, longest: int, shared: Sequence[int] = ()) -> bool:
        """Allocates room for `tokens` under a new key, behind the pages in `shared`; returns False
        and changes nothing if too few pages are free."""
        if key in self._tables:
            raise ValueError("the key already holds pages")
        if self.pages_for(tokens) - len(shared) > self.free:
            return False
        table = self._tables[key] = _Table()
        self._give(table, shared)
        self.retain(shared)
        lengths = {} if shared else dict.fromkeys((longest, tokens))
        for wanted in map(self.pages_for, lengths):
            if (home := self._home(wanted)) is not None:
                table.wish = (home, home + wanted)
                self._wished[home : home + wanted] = True
                break
        return self.grow(key, tokens)

    def grow(self, key: Hashable, tokens: int) -> bool:
        """Grows a sequence to hold `tokens` in all; False, and no change, if too few pages are
        free."""
        table = self._tables[key]
        need = self.pages_for(tokens) - len(table.pages)
        if need <= 0:
            return True
        if need > self.free:
            return False
        page = table.pages[-1] + 1 if table.pages else table.wish[0]
        behind = 0  # pages that continue the run
        while behind < need and self._is_open(page + behind, table.wish):
            behind += 1
        self._holders[page : page + behind] = 1
        self._give(table, range(page, page + behind))
        self._give(table, self._elsewhere(need - behind))
        self.free -= need
        return True

    def slots(self, key: Hashable, start: int, stop: int) -> Slots:
        """Slot ids of tokens start .. stop - 1: a range if the pages are consecutive, else a view
        that must not be kept."""
        table = self._tables[key]
        if not 0 <= start <= stop <= len(table.pages) * self.page_size:
            raise ValueError(f"tokens {start}..{stop} are outside {len(table.pages)} pages")
        if table.in_row:
            first = table.pages[0] * self.page_size if table.pages else 0
            return range(first + start, first + stop)
        self._number(table)
        return table.slots[start:stop]

    def release(self, key: Hashable) -> int:
        """Releases a sequence's pages and returns how many became free; 0 for an unknown key."""
        table = self._tables.pop(key, None)
        if table is None:
            return 0
        self._wished[table.wish[0] : table.wish[1]] = False
        return self.let_go(table.pages)

    def retain(self, pages: Sequence[int]) -> None:
        """Adds a holder to each of these distinct pages; ValueError if one has none yet."""
        these = np.array(pages, np.int64)
        if (self._holders[these] < 1).any():
            raise ValueError(f"one of pages {pages} has no holder")
        self.idle -= int((self._kept[these] & (self._holders[these] == 1)).sum())
        self._holders[these] += 1

    def let_go(self, pages: Sequence[int]) -> int:
        """Removes a holder from each of these distinct pages; returns how many became free."""
        these = np.array(pages, np.int64)
        if (self._holders[these] < 1).any():
            raise ValueError(f"one of pages {pages} has no holder")
        self._holders[these] -= 1
        empty = these[self._holders[these] == 0]
        self.free += len(empty)
        if self.free <= SPARE:  # so few need no search
            self._spare.extend(empty[::-1].tolist())
        self.idle += int((self._kept[these] & (self._holders[these] == 1)).sum())
        return len(empty)

    def keep(self, pages: Sequence[int]) -> None:
        """Adds a holder that keeps pages after their sequences; a page is kept at most once."""
        these = np.array(pages, np.int64)
        if self._kept[these].any():
            raise ValueError(f"one of pages {pages} is kept already")
        self.retain(pages)
        self._kept[these] = True

    def give_up(self, page: int) -> bool:
        """Stops keeping a page; returns whether it is free now."""
        if not self._kept[page]:
            raise ValueError(f"page {page} is not kept")
        self.idle -= bool(self._holders[page] == 1)
        self._kept[page] = False
        return bool(self.let_go([page]))

    def _is_open(self, page: int, wish: tuple[int, int] = (0, 0)) -> bool:
        """Whether the page exists, has no holder and lies in no sequence's wish but this one."""
        if page >= self.total or self._holders[page] != 0:
            return False
        return wish[0] <= page < wish[1] or not self._wished[page]

    def _home(self, wanted: int) -> int | None:
        """First page of the shortest open run of `wanted` pages; None if there is none."""
        runs = _runs((self._holders == 0) & ~self._wished)
        fitting = runs[runs[:, 1] >= wanted]
        return int(fitting[fitting[:, 1].argmin(), 0]) if len(fitting) else None

    def _elsewhere(self, need: int) -> list[int]:
        """Takes `need` of the free pages, there being as many."""
        taken: list[int] = []
        while len(taken) < need:
            if not self._spare:
                self._spare.extend(self._found(need - len(taken)))
            if self._is_open(page := self._spare.pop()):
                self._holders[page] = 1
                taken.append(page)
        return taken

    def _found(self, need: int) -> list[int]:
        """`need` free pages, and some for later, the next one last: of open runs the shortest that
        suffice, else the longest; if there are none, the far ends of wishes, which are cut
        there."""
        most = max(need, SPARE)
        runs = _runs((self._holders == 0) & ~self._wished)
        robs = not len(runs)
        if robs:
            runs = _runs(self._holders == 0)
        size = runs[:, 1]
        suffices = (size >= need) & (not robs)
        found: list[int] = []
        for first, count in runs[np.lexsort((np.where(suffices, size, -size), ~suffices))].tolist():
            if len(found) == most:
                break
            cut = min(-(-count // 2) if robs else count, most - len(found))
            start = first + count - cut if robs else first
            found += range(start, start + cut)
            if robs:
                self._cut_wish(start)
        return found[::-1]

    def _cut_wish(self, page: int) -> None:
        """Ends the wish that this page is in before it."""
        for table in self._tables.values():
            first, last = table.wish
            if first <= page < last:
                table.wish = (first, page)
                self._wished[page:last] = False

    def _give(self, table: _Table, pages: Sequence[int]) -> None:
        whole = [*table.pages[-1:], *pages]
        table.in_row &= whole == list(range(whole[0], whole[0] + len(whole))) if whole else True
        table.pages += pages

    def _number(self, table: _Table) -> None:
        """Extends `table.slots` by the slot ids of pages not numbered yet."""
        before, have = table.numbered * self.page_size, len(table.pages) * self.page_size
        if before == have:
            return
        if len(table.slots) < have:
            grown = np.empty(max(have, 2 * len(table.slots)), np.int64)
            grown[:before] = table.slots[:before]
            table.slots = grown
        new = np.asarray(table.pages[table.numbered :], np.int64)[
            :, None
        ] * self.page_size + np.arange(self.page_size)
        table.slots[before:have] = new.ravel()
        table.numbered = len(table.pages)


def numbers_of(slots: Slots | Sequence[int]) -> npt.NDArray[np.int64]:
    """Slot ids as an array; numpy reads a range number by number."""
    if isinstance(slots, range):
        return np.arange(slots.start, slots.stop, slots.step)
    return np.asarray(slots, np.int64)


def together(parts: Iterable[Slots]) -> npt.NDArray[np.int64]:
    """Concatenates the slot ids, or positions, of several runs."""
    runs = list(parts)
    if sum(map(len, runs)) <= SHORT * len(runs):  # as those of a round
        return np.fromiter(chain.from_iterable(runs), np.int64)
    return np.concatenate([numbers_of(run) for run in runs])


def _runs(free: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """[runs, (first, count)] of consecutive true entries."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], free, [False])).astype(np.int8)))
    return np.stack((edges[::2], edges[1::2] - edges[::2]), axis=1)
