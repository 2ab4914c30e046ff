"""Whole states kept where a page of a prompt ends, for prompts that begin alike: see `prefix_cache`
for their names.

A state cannot be put together from pages, so a prompt begins with the longest of its prefixes whose
state is here. Names carry the salt, so tenants never meet. Once all of them take too many bytes,
those kept or used longest ago go first; one that a prompt began with since it was last looked at is
passed over once, so that the many states of one long prompt do not push out a beginning that many
share.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import structlog
import torch

from verify_service.kept_state import copied, size
from verify_service.stateful import StatefulRunner

log = structlog.get_logger("dspark.verify")


class _KeptCache(NamedTuple):
    cache: Any
    length: int  # tokens in it
    bytes: int


class StateCache:
    """Of one runner, by the name of the page that ends there."""

    def __init__(self, runner: StatefulRunner, most: int) -> None:
        self._runner, self._most = runner, most  # most: bytes
        self._kept: OrderedDict[bytes, _KeptCache] = OrderedDict()
        self._used: set[bytes] = set()  # passed over once
        self.bytes = 0

    def __contains__(self, name: bytes) -> bool:
        return name in self._kept

    def keep(self, sequence: int, name: bytes) -> None:
        """Its state as it stands, unless that alone is too large. Where the device is full all are
        forgotten."""
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

    def begin(self, sequence: int, name: bytes) -> bool:
        """The sequence stands where this state was taken; False where the device is full, and all
        are forgotten."""
        self._kept.move_to_end(name)
        self._used.add(name)
        kept = self._kept[name]
        try:
            self._runner.begin(sequence, kept.cache, kept.length)
        except torch.OutOfMemoryError:
            self._give_way()
            return False
        return True

    def _give_way(self) -> None:
        """Whoever runs needs the memory more."""
        log.warning(
            "verify.state_cache",
            dropped=len(self._kept),
            bytes=self.bytes,
            reason="the device is full",
        )
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self._kept.clear()
        self._used.clear()
        self.bytes = 0
