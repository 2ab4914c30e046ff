"""Memory that a verifier holds for its sequences: KV pages, feature rows at the same slots, cached
prefixes.

Invariant: a sequence has pages for every cached token. Pages for the tokens of a step are reserved
before the step begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dspark.pages import EngineUsage, KVBlockPool, Slots, together
from dspark.rounds.events import OrderRow
from dspark.types import Refusal, RefusalReason
from dspark.wire.orders import PackedRows
from verify_service.batch_runner import FeatureRun, KeptRows
from verify_service.prefix_cache import PrefixCache
from verify_service.sequences import CachedSequence


class RowStore(Protocol):
    """Feature rows beside the KV blocks, at the same slots; their content is opaque here."""

    @property
    def width(self) -> int: ...

    def packed(self, slots: Slots | Sequence[int]) -> PackedRows:
        """The rows at these slots, packed for the wire."""


class KVCacheManager:
    """Sequences, KV pages, feature rows and cached prefixes of one engine."""

    def __init__(
        self,
        *,
        pages: int,
        page_size: int,
        most: int,
        store: RowStore | None,
        kept: int,
    ) -> None:
        """most: sequences at a time; kept: most pages of cached prefixes, 0: none are cached."""
        self.states: dict[int, CachedSequence] = {}
        self.store = store
        self._most = most
        self.pool = KVBlockPool(pages, page_size)
        self.prefixes = PrefixCache(self.pool, kept)

    @property
    def held(self) -> EngineUsage:
        used = self.pool.total - self.pool.free - self.pool.idle
        return EngineUsage(len(self.states), used, self.pool.total)

    def admit(
        self, state: CachedSequence, longest: int, token_ids: Sequence[int]
    ) -> Refusal | None:
        """Adds a sequence with pages for its prompt, reusing cached ones unless the prompt is
        scored. One page per held sequence stays free, so that each can grow."""
        if len(self.states) >= self._most:
            return Refusal(
                RefusalReason.NO_PAGES, f"{len(self.states)} sequences are held, the limit"
            )
        state.keep_features &= self.store is not None
        keep_features, salt = state.keep_features, state.salt
        shared: list[int] = []
        if salt is not None and state.scores is None:
            shared = self.prefixes.match(token_ids, salt, needs_rows=keep_features)
        self.pool.retain(shared)  # before `_make_free` may reclaim them
        wanted = self.pool.pages_for(state.prompt_len) - len(shared)
        opened = self._make_free(wanted + len(self.states)) and self.pool.open(
            state, state.prompt_len, longest, shared
        )
        self.pool.let_go(shared)
        if not opened:
            free = self.pool.free + self.pool.idle
            return Refusal(
                RefusalReason.NO_PAGES,
                f"{wanted} pages are needed beside {len(self.states)} to grow; {free} are free",
            )
        state.cached = state.spared = state.kept_state = len(shared) * self.pool.page_size
        if self.prefixes.states is not None and salt is not None:
            alike = self.prefixes.alike(token_ids, salt, needs_rows=keep_features)
            state.alike = alike * self.pool.page_size
        state.token_ids.extend(token_ids[: state.cached])
        self.states[state.sequence] = state
        if state.spared and (kept := self.prefixes.states) is not None:
            name = self.prefixes.name(state.token_ids, salt or "")
            assert name is not None
            if not kept.begin(state, name):
                # the kept state is dropped: the next attempt runs the whole prompt
                self.drop(state)
                return Refusal(
                    RefusalReason.NO_PAGES,
                    "the device has no memory for the state of what is computed",
                )
        return None

    def grow(self, state: CachedSequence, tokens: int) -> bool:
        """Grows a sequence to `tokens` in all; returns False and changes nothing without pages."""
        pool = self.pool
        return pool.grow(state, tokens) or (
            self._make_free(pool.missing(state, tokens)) and pool.grow(state, tokens)
        )

    def grow_within(self, state: CachedSequence, least: int, more: int) -> int | None:
        """Grows to `least` tokens and as many of `more` as pages allow; returns how many of
        `more`, or None if even `least` does not fit."""
        if self.pool.room(state) >= least + more or self.grow(state, least + more):
            return more
        size = self.pool.page_size
        missing = self.pool.missing(state, least + more)
        held = self.pool.pages_for(least + more) - missing
        room = (held + self.pool.free) * size  # `grow` has reclaimed prefixes already
        if room < least or not self.grow(state, room):
            return None
        return min(room - least, more)

    def slots(self, state: CachedSequence, start: int, stop: int) -> Slots:
        return self.pool.slots(state, start, stop)

    def keep_prefix(self, state: CachedSequence) -> None:
        """Enters the full pages of a sequence into the prefix cache, unless it has no salt."""
        if state.salt is not None:
            rows = state.keep_features
            self.prefixes.enter(
                state.token_ids[: state.cached],
                state.salt,
                self.pool.pages(state),
                rows=rows,
            )

    def forget_prefix(self, state: CachedSequence) -> None:
        """Takes what a sequence computed, or shared, out of the prefix cache for good: no numbers
        came of it, and nobody else's would."""
        if state.salt is not None:
            self.prefixes.forget(state.token_ids, state.salt)
            state.salt = None

    def keep_state(self, state: CachedSequence) -> None:
        """Keeps the target's state of the prompt so far: at its last whole page, and where an
        earlier prompt diverged. Between those only when the length has doubled since the last kept
        state, so that a long prompt keeps few."""
        kept, size = self.prefixes.states, self.pool.page_size
        if kept is None or state.salt is None or state.cached % size:
            return
        last = (state.prompt_len - 1) // size * size
        if state.cached < 2 * state.kept_state and state.cached not in (state.alike, last):
            return
        state.kept_state = state.cached
        if (name := self.prefixes.name(state.token_ids[: state.cached], state.salt)) is not None:
            kept.keep(state, name)

    def chunk_end(self, state: CachedSequence, most: int) -> int:
        """End position of the next prompt chunk, of up to `most` tokens; at the end of a page if
        states are kept."""
        start, size = state.cached, self.pool.page_size
        stop = min(start + most, state.prompt_len)
        if self.prefixes.states is None:
            return stop
        if start < state.alike < stop:
            return state.alike
        whole = min(stop, state.prompt_len - 1) // size * size
        return whole if whole > start else stop

    def drop(self, state: CachedSequence) -> None:
        """Drops a sequence; its full pages stay in the prefix cache if it has a salt."""
        if self.states.get(state.sequence) is state:  # else a successor has its number
            del self.states[state.sequence]
        self.keep_prefix(state)
        self.pool.release(state)

    def where(self, runs: Sequence[tuple[CachedSequence, int, int]]) -> Slots:
        """Slots of runs of (sequence, first position, number of tokens), concatenated."""
        slots = self.pool.slots
        found = [slots(state, start, start + count) for state, start, count in runs]
        return found[0] if len(found) == 1 else together(found)

    def rows(self, state: CachedSequence, start: int, stop: int) -> FeatureRun:
        """Kept feature rows of positions start .. stop - 1."""
        assert self.store is not None
        rows = self.store.packed(self.slots(state, start, stop))
        return FeatureRun(state.sequence, state.epoch, start, state.token_ids[start:stop], rows)

    def kept_rows(self, asked: Sequence[OrderRow]) -> KeptRows:
        """Kept feature rows and grammar masks for several order rows, gathered at once."""
        counts, token_ids, runs, masks = [], list[int](), [], []
        for sequence, epoch, _, committed_len, _, _, start in asked:
            state, count, mask = self.states.get(sequence), 0, b""
            if state is not None and state.epoch == epoch:
                mask = state.first_mask
                stop = min(committed_len - 1, state.cached)
                if state.keep_features and stop > start:
                    count = stop - start
                    token_ids += state.token_ids[start:stop]
                    runs.append((state, start, count))
            counts.append(count)
            masks.append(mask)
        rows = self.store.packed(self.where(runs)) if runs and self.store is not None else None
        return KeptRows(counts, token_ids, rows, masks if any(masks) else ())

    def _make_free(self, pages: int) -> bool:
        """Reclaims cached prefixes if needed; returns whether `pages` pages are free."""
        if pages > self.pool.free:
            self.prefixes.reclaim(pages - self.pool.free)
        return pages <= self.pool.free
