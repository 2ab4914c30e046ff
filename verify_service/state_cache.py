"""Prefix cache of whole states, kept at ends of prompt pages and named as in `prefix_cache`.

A state cannot be assembled from pages, so a prompt starts from the longest of its prefixes whose
state is kept. Names include the salt, so tenants never share states. Beyond the byte limit the
least recently used state is evicted. One that a prompt started from since it was last considered is
passed over once, so that the many states of one long prompt do not evict a widely shared prefix.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, NamedTuple

import structlog
import torch

from verify_service.kept_state import copied, size
from verify_service.stateful import StatefulRunner

log = structlog.get_logger("dspark.verify")


class _KeptCache(NamedTuple):
    cache: Any
    length: int  # tokens
    bytes: int


class StateCache:
    """Kept states of one runner, by the name of their last page."""

    def __init__(self, runner: StatefulRunner, most: int) -> None:
        self._runner, self._most = runner, most  # most: bytes
        self._kept: OrderedDict[bytes, _KeptCache] = OrderedDict()
        self._used: set[bytes] = set()  # passed over once at eviction
        self.bytes = 0

    def __contains__(self, name: bytes) -> bool:
        return name in self._kept

    def keep(self, sequence: Hashable, name: bytes) -> None:
        """Keeps a copy of a sequence's state, unless it alone exceeds the limit. Drops all states
        if device memory is full."""
        if name in self._kept:
            self._kept.move_to_end(name)
            return
        found = self._runner.standing(sequence)
        if found is None or (taken := size(found.cache)) > self._most:
            return
        try:
            made = copied(found.cache, apart=True)
        except torch.OutOfMemoryError:
            self._give_way()
            return
        self._kept[name] = _KeptCache(made, found.length, taken)
        self.bytes += taken
        while self.bytes > self._most:
            oldest, kept = self._kept.popitem(last=False)
            if oldest in self._used:
                self._used.remove(oldest)
                self._kept[oldest] = kept
            else:
                self.bytes -= kept.bytes

    def begin(self, sequence: Hashable, name: bytes) -> bool:
        """Starts a sequence from a kept state; returns False and drops all states if device memory
        is full."""
        self._kept.move_to_end(name)
        self._used.add(name)
        kept = self._kept[name]
        try:
            self._runner.begin(sequence, kept.cache, kept.length)
        except torch.OutOfMemoryError:
            self._give_way()
            return False
        return True

    def drop(self, name: bytes) -> None:
        if (kept := self._kept.pop(name, None)) is not None:
            self.bytes -= kept.bytes
            self._used.discard(name)

    def _give_way(self) -> None:
        """Drops all states, as running sequences need the memory."""
        log.warning(
            "verify.state_cache",
            dropped=len(self._kept),
            bytes=self.bytes,
            reason="the device is full",
        )
        self.clear()

    def clear(self) -> None:
        """Drops all states."""
        self._kept.clear()
        self._used.clear()
        self.bytes = 0
