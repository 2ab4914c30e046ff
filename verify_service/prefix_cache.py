"""Prefix cache: full KV pages kept after their sequence is gone, found again by their tokens.

A page's name is a hash over its token ids, the name of the page before it, and a salt, so sequences
with different salts (tenants) never share pages. Feature rows lie at the same slots, so a hit saves
both the prefill and the drafter's rows; a page without rows serves only sequences that need none.
Only pages wholly below `committed_len - 1` enter, as nothing writes to them any more. The least
recently used page that no sequence holds is evicted first, the end of a chain before its beginning.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dspark.pages import KVBlockPool

if TYPE_CHECKING:
    from verify_service.state_cache import StateCache


class _Kept(NamedTuple):
    page: int
    rows: bool  # whether feature rows lie beside the keys and values


class PrefixCache:
    """Pages by name, in order of use. The cache holds its pages beside the sequences."""

    def __init__(self, pool: KVBlockPool, most: int) -> None:
        """most: number of pages that are kept."""
        self._pool, self._most = pool, most
        # set before first use if the target needs states beside pages
        self.states: StateCache | None = None
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()  # least recently used first

    def match(self, token_ids: Sequence[int], salt: str, *, needs_rows: bool) -> list[int]:
        """Pages of the longest cached prefix. At least one token is left to run for its logits."""
        found = list(self._found(token_ids, salt, needs_rows=needs_rows))
        while self.states is not None and found and found[-1][0] not in self.states:
            found.pop()
        self._touch([name for name, _ in found])
        return [page for _, page in found]

    def alike(self, token_ids: Sequence[int], salt: str, *, needs_rows: bool) -> int:
        """Number of cached pages of this prefix, whether or not a state is kept at its end."""
        return sum(1 for _ in self._found(token_ids, salt, needs_rows=needs_rows))

    def _found(
        self, token_ids: Sequence[int], salt: str, *, needs_rows: bool
    ) -> Iterator[tuple[bytes, int]]:
        for name in self._names(token_ids[: len(token_ids) - 1], salt):
            kept = self._kept.get(name)
            if kept is None or (needs_rows and not kept.rows):
                return
            yield name, kept.page

    def enter(
        self, token_ids: Sequence[int], salt: str, pages: Sequence[int], *, rows: bool
    ) -> None:
        """Keeps the full pages of a sequence that holds keys and values for `token_ids`."""
        names, fresh = list(self._names(token_ids, salt)), list[int]()
        for name, page in zip(names, pages, strict=False):
            kept = self._kept.get(name)
            if kept is not None and (kept.rows or not rows):
                continue
            if kept is None or kept.page != page:
                fresh.append(page)
                if kept is not None:
                    self._pool.give_up(kept.page)
            self._kept[name] = _Kept(page, rows)
        self._pool.keep(fresh)
        self._touch(names)
        self.reclaim(len(self._kept) - self._most)

    def reclaim(self, pages: int) -> int:
        """Frees up to `pages` pages that no sequence holds; returns how many."""
        pages = min(pages, self._pool.idle)
        idle, held = list[bytes](), list[bytes]()
        for name, kept in self._kept.items() if pages > 0 else ():
            (idle if self._pool.holders(kept.page) == 1 else held).append(name)
            if len(idle) == pages:
                break
        for name in idle:
            self._pool.give_up(self._kept.pop(name).page)
        for name in held:  # in use, so the next call need not pass them again
            self._kept.move_to_end(name)
        return len(idle)

    def forget(self, token_ids: Sequence[int], salt: str) -> None:
        """Drops the pages of this prefix, and states at their ends: a later prompt computes them
        anew."""
        for name in self._names(token_ids, salt):
            if (kept := self._kept.pop(name, None)) is not None:
                self._pool.give_up(kept.page)
            if self.states is not None:
                self.states.drop(name)

    def clear(self) -> None:
        """Drops all pages and states."""
        if self.states is not None:
            self.states.clear()
        for kept in self._kept.values():
            self._pool.give_up(kept.page)
        self._kept.clear()

    def name(self, token_ids: Sequence[int], salt: str) -> bytes | None:
        """Name of the last page of tokens that fill pages; None if the cache is off."""
        return deque(self._names(token_ids, salt), maxlen=1).pop() if self._most else None

    def _names(self, token_ids: Sequence[int], salt: str) -> Iterator[bytes]:
        """Names of the full pages of these tokens, in order."""
        if not self._most:
            return
        size = self._pool.page_size
        ids = np.asarray(token_ids, "<u4")
        name = hashlib.blake2b(salt.encode(), digest_size=16).digest()
        for first in range(0, len(ids) - size + 1, size):
            name = hashlib.blake2b(
                name + ids[first : first + size].tobytes(), digest_size=16
            ).digest()
            yield name

    def _touch(self, names: Sequence[bytes]) -> None:
        for name in reversed(names):  # the beginning of a chain outlives its end
            if name in self._kept:
                self._kept.move_to_end(name)
