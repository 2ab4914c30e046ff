"""Plan of one packed pass: its sequences, the slots of their keys and values, and masks.

A pass is one row of tokens: those of several sequences, concatenated. All that depends only on the
sequences of the pass (slots, masks, gather indices) is computed once here, so a layer only writes
and attends.

Symbols: T tokens of the pass, n sequences of a group, Q queries and S keys of its longest member.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.native.attention import Tables
from dspark.pages import Slots, numbers_of
from verify_service.kernels import Kernel

Indices = npt.NDArray[np.int64]

# context length from which, on a CPU, a sliced view is faster than a padded gather
ALONE_FROM = 384
# Cost of gathering and reading a key, and of a call, relative to one query seeing one key; measured
# on a CPU with two key-value heads of 64.
KEY_COST, CALL_COST = 2.25, 2800.0


class Segment(NamedTuple):
    """New tokens of one sequence: positions start .. start + len(token_ids) - 1."""

    key: Hashable
    start: int
    token_ids: Sequence[int]
    # of positions 0 .. start + len(token_ids) - 1; a range where they are consecutive
    slots: Slots | Sequence[int]
    prompt: int = 0  # tokens of the prompt, for rotation that depends on length

    @property
    def length(self) -> int:
        """Number of keys that its last token sees."""
        return self.start + len(self.token_ids)


@dataclass(slots=True)
class Group:
    """Sequences that share one attention call."""

    lengths: list[int]  # keys of each member, new ones included
    counts: list[int]  # queries of each member
    device: torch.device
    view: slice | None  # slots of a lone member, if consecutive
    # [n * S] slots; padding repeats a slot of the same sequence, so it is initialized
    gather: Tensor | None
    rows: Tensor | None  # [n * Q] indices of query tokens in the pass; None: all, in order
    kept: Tensor | None  # [sum of counts] indices of outputs without padding; None: all
    _masks: dict[tuple[int | None, int, torch.dtype], Tensor | None] = field(default_factory=dict)

    @property
    def members(self) -> int:
        return len(self.lengths)

    def mask(self, window: int | None, groups: int, dtype: torch.dtype) -> Tensor | None:
        """Additive mask [n, 1, groups * Q, S]; None if every query sees every key."""
        key = (window, groups, dtype)
        if key not in self._masks:
            self._masks[key] = self._build_mask(window, groups, dtype)
        return self._masks[key]

    def _build_mask(self, window: int | None, groups: int, dtype: torch.dtype) -> Tensor | None:
        longest, most = max(self.lengths), max(self.counts)
        within = window is None or longest <= window
        if min(self.lengths) == longest and most == 1 and within:
            return None
        lengths = torch.tensor(self.lengths, device=self.device).view(-1, 1, 1)
        counts = torch.tensor(self.counts, device=self.device).view(-1, 1, 1)
        # Query j of a member is at position length - count + j; padding repeats the last query.
        slot = torch.arange(most, device=self.device).view(1, -1, 1).minimum(counts - 1)
        position = lengths - counts + slot
        keys = torch.arange(longest, device=self.device).view(1, 1, -1)
        visible = keys <= position
        if window is not None:
            visible &= keys > position - window
        mask = torch.zeros(visible.shape, dtype=dtype, device=self.device)
        mask.masked_fill_(~visible, float("-inf"))
        if groups > 1:
            mask = mask.repeat(1, groups, 1)
        return mask.unsqueeze(1)


@dataclass(slots=True)
class PassPlan:
    """Device inputs of one packed pass."""

    token_ids: Tensor  # [1, T]
    positions: Tensor  # [1, T]
    slots: Tensor  # [T] slot of each token's keys and values
    run: slice | None  # the same slots, if consecutive
    groups: list[Group]  # empty if a kernel reads the pages in place
    tables: Tables | None = None
    kernel: Kernel | None = None
    # cache of lean layers, by id of the cos table
    rotations: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


def build_plan(segments: Sequence[Segment], device: torch.device) -> PassPlan:
    """The plan of one pass over `segments`, in their order, for attention without a kernel."""
    counts = np.array([len(segment.token_ids) for segment in segments], np.int64)
    starts = np.array([segment.start for segment in segments], np.int64)
    first_rows = np.cumsum(counts) - counts
    packed = np.empty((3, int(counts.sum())), np.int64)
    packed[0] = [token for segment in segments for token in segment.token_ids]
    packed[1] = np.arange(packed.shape[1]) + np.repeat(starts - first_rows, counts)
    for segment, first, count in zip(segments, first_rows.tolist(), counts.tolist(), strict=True):
        packed[2, first : first + count] = segment.slots[segment.start : segment.length]
    groups = [
        _group(
            [segments[i] for i in chosen],
            first_rows[chosen],
            device,
            whole=len(chosen) == len(segments),
        )
        for chosen in _choose_groups(segments, device)
    ]
    moved = torch.from_numpy(packed).to(device)
    return PassPlan(moved[0:1], moved[1:2], moved[2], run_of(segments), groups)


def run_of(segments: Sequence[Segment]) -> slice | None:
    """Slots that a lone sequence writes, if consecutive: a copy instead of an index operation."""
    slots = segments[0].slots
    if len(segments) > 1 or not isinstance(slots, range):
        return None
    return slice(slots[segments[0].start], slots[0] + segments[0].length)


def _choose_groups(segments: Sequence[Segment], device: torch.device) -> list[list[int]]:
    """Indices of segments by group: long contiguous ones alone, the others with similar ones.

    Each member of a group costs as much as one with the group's most keys and most queries. Groups
    are built once in order of queries and once in order of keys; the cheaper result is returned.
    """
    if len(segments) == 1:
        return [[0]]
    alone_from = ALONE_FROM if device.type == "cpu" else 1 << 62
    alone: list[int] = []
    shared: list[int] = []
    for index, segment in enumerate(segments):
        lies_in_a_row = isinstance(segment.slots, range) and segment.length >= alone_from
        (alone if lies_in_a_row else shared).append(index)
    sizes = [(len(segments[index].token_ids), segments[index].length, index) for index in shared]
    by_queries = _parted(sorted(sizes))
    by_keys = _parted(sorted(sizes, key=lambda size: (size[1], size[0])))
    best = min(by_queries, by_keys, key=lambda found: found[0])[1]
    return [*([index] for index in alone), *(sorted(group) for group in best)]


def _parted(sizes: Sequence[tuple[int, int, int]]) -> tuple[float, list[list[int]]]:
    """Splits (queries, keys, index) in this order into groups, a new one where that is cheaper.
    Returns (cost, groups)."""
    groups: list[list[int]] = []
    total = before = 0.0  # cost of the groups that are done, and of the current one
    most = longest = 0
    for queries, keys, index in sizes:
        wider, further = max(most, queries), max(longest, keys)
        joined = _cost(len(groups[-1]) + 1, further, wider) if groups else 0.0
        alone = _cost(1, keys, queries)
        if not groups or joined > before + alone:
            groups.append([index])
            total, before, most, longest = total + before, alone, queries, keys
        else:
            groups[-1].append(index)
            before, most, longest = joined, wider, further
    return total + before, groups


def _cost(members: int, keys: int, queries: int) -> float:
    """Cost of one attention call, in units of one query seeing one key."""
    return members * keys * (KEY_COST + queries) + CALL_COST


def _group(
    members: list[Segment], first_rows: Indices, device: torch.device, *, whole: bool
) -> Group:
    lengths = [segment.length for segment in members]
    counts = [len(segment.token_ids) for segment in members]
    longest, most = max(lengths), max(counts)
    even = min(counts) == most
    view, gather = None, None
    if len(members) == 1 and isinstance(members[0].slots, range):
        view = slice(members[0].slots[0], members[0].slots[0] + longest)
    else:
        table = np.empty((len(members), longest), np.int64)
        for row, segment, length in zip(table, members, lengths, strict=True):
            row[:length] = numbers_of(segment.slots[:length])
            row[length:] = segment.slots[0]
        gather = torch.from_numpy(table.ravel()).to(device)
    rows, kept = None, None
    if not (whole and even):
        column, has = np.arange(most), np.array(counts)[:, None]
        rows = torch.from_numpy((first_rows[:, None] + np.minimum(column, has - 1)).ravel()).to(
            device
        )
        if not even:
            kept = torch.from_numpy(np.flatnonzero(column < has)).to(device)
    return Group(lengths, counts, device, view, gather, rows, kept)
