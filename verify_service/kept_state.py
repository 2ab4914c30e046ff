"""The library's cache of one sequence, which can return to any length since the previous pass.

A cache of keys and values alone is cut. If a layer keeps more (states of linear attention or state
spaces, convolutions, compressed windows), the cache is copied before a pass, and accepted tokens
before a rejected draft run again in front of the next ones. Copies share the tensors that grow with
the context: the library replaces these and never writes into them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dspark.errors import CheckpointError

REPLAYED_AT_MOST = 16  # tokens replayed in front of a pass; more get a pass of their own
_PLAIN = (int, float, str, type(None), torch.dtype, torch.device)
# attributes that the library replaces and never writes into
_GROWING = {"keys", "values", "compressed_kv", "indexer_keys"}


class KeptState:
    """The cache of one sequence, used by one thread at a time. `cache` may be None before the first
    pass: most models make their own."""

    def __init__(self, make: Callable[[], Any], *, cut: bool, length: int = 0) -> None:
        self.cache: Any = make()
        self.length = length  # tokens in the cache
        self._cut = cut  # whether the cache can be cropped
        self._before: Any = copied(self.cache)
        self._start = length  # tokens in the copy
        # tokens after the copy: those that ran, and those that have to run again
        self._since: list[int] = []
        self._sound = True  # False during a pass and after a failed one

    def reach(self, start: int) -> list[int]:
        """Rolls the cache back to `start` tokens or fewer; returns those to run again before
        `start`, kept until `hold` in case their pass fails. Raises CheckpointError if that is
        impossible.
        """
        if not self._sound:
            self._restore()
        if self._cut and start < self.length:
            self.cache.crop(start - self.length)
            self.length = start
        if start == self.length:
            return []
        if not self._start <= start <= self._start + len(self._since):
            raise CheckpointError(
                f"a state of {self.length} tokens, kept from {self._start} on, cannot be at {start}"
            )
        del self._since[start - self._start :]
        self._restore()
        return list(self._since)

    def hold(self) -> None:
        """Copies the cache, so that later passes can be rolled back to here."""
        self._before, self._start, self._since = copied(self.cache), self.length, []

    def running(self) -> None:
        """Marks the start of a pass; if `ran` does not follow, the next `reach` restores."""
        self._sound = False

    def ran(self, token_ids: Sequence[int], cache: Any) -> None:
        """Records the tokens of a pass that has ended, and its cache."""
        self.cache, self._sound = cache, True
        at = self.length - self._start
        # the tokens after these still have to run again
        self._since[at : at + len(token_ids)] = token_ids
        self.length += len(token_ids)

    def _restore(self) -> None:
        self.cache, self.length, self._sound = copied(self._before), self._start, True


def copied(cache: Any, *, apart: bool = False) -> Any:
    """A copy that changes independently of the original; with `apart` it shares no memory with it
    either."""
    growing = set() if apart else _GROWING
    return _woven(
        [cache], lambda name, tensors: tensors[0] if name in growing else tensors[0].clone()
    )


def size(cache: Any) -> int:
    """Bytes of the tensors in a cache."""
    sizes = list[int]()

    def note(_: str, tensors: list[Tensor]) -> Tensor:
        sizes.append(tensors[0].nbytes)
        return tensors[0]

    _woven([cache], note)
    return sum(sizes)


def form(cache: Any) -> Any:
    """A hashable key: caches with equal keys can be joined; None if this one cannot be.

    The first axis of each tensor is then the sequence, or it is a scalar; all else is equal.
    """
    if cache is None:
        return None
    try:
        hash(found := _described(cache))
    except (TypeError, ValueError):
        return None
    return found


def _described(cache: Any) -> Any:
    """Raises ValueError if a tensor has no axis of sequences."""
    return type(cache), tuple((name, _form(name, value)) for name, value in vars(cache).items())


def _form(name: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.dim() == 0:
            return value.item()
        if value.shape[0] != 1:
            raise ValueError("no axis of sequences")
        return tuple(value.shape), value.dtype
    if isinstance(value, dict):
        return tuple((key, _form("", part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return tuple(_described(part) if name == "layers" else _form("", part) for part in value)
    return value if isinstance(value, _PLAIN) else id(value)


def joined(caches: Sequence[Any]) -> Any:
    """One cache of several sequences, joined from caches of equal `form`."""
    return _woven(caches, lambda _, tensors: torch.cat(tensors))


def parted(cache: Any, count: int) -> list[Any]:
    """Splits a joined cache by sequence. Raises CheckpointError if it does not hold `count`."""

    def row(number: int) -> Any:
        def pick(_: str, tensors: list[Tensor]) -> Tensor:
            if len(tensors[0]) != count:
                raise CheckpointError(
                    f"a state of {count} sequences has a part of shape {tuple(tensors[0].shape)}"
                )
            return tensors[0][number : number + 1]

        return _woven([cache], pick)

    return [row(number) for number in range(count)]


_Weave = Callable[[str, list[Tensor]], Tensor]


def _woven(caches: Sequence[Any], weave: _Weave) -> Any:
    """A cache like the first one; `weave` makes each tensor from those at the same place, and is
    told the name of the attribute. None stays None."""
    if caches[0] is None:
        return None
    made = copy.copy(caches[0])
    for name in vars(made):
        parts = [getattr(cache, name) for cache in caches]
        if name == "layers":
            setattr(made, name, [_woven(layers, weave) for layers in zip(*parts, strict=True)])
        else:
            setattr(made, name, _woven_value(name, parts, weave))
    return made


def _woven_value(name: str, values: list[Any], weave: _Weave) -> Any:
    first = values[0]
    if isinstance(first, Tensor):
        return weave(name, values) if first.dim() else first.clone()  # each copy counts on its own
    if isinstance(first, dict):
        return {key: _woven_value(name, [value[key] for value in values], weave) for key in first}
    if isinstance(first, list | tuple):
        return type(first)(
            _woven_value(name, list(parts), weave) for parts in zip(*values, strict=True)
        )
    return first
