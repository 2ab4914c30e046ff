"""Attention of one packed pass over a paged key-value pool, for any model that asks `AttentionInterface`.

A pass is one row of tokens: those of several sequences end to end. Everything that depends only on who is in the pass
(slots, masks, gather indices) is worked out once, in the plan; per layer there is one write and one attention per
group. Knows nothing of sequences' lives, of sampling or of gRPC.

Symbols: T tokens of the pass, n sequences of a group, Q queries and S keys of its longest member, Hq and Hkv heads,
D head size, G = Hq / Hkv.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

NAME = "dspark_paged"

ALONE_FROM = 384  # on a CPU, from this context length a sliced view beats a share of a padded gather
FOLD_UP_TO = 128  # query rows per key-value head up to which a head group is folded into one product


@dataclass(frozen=True, slots=True)
class Segment:
    """New tokens of one sequence: positions start .. start + len(token_ids) - 1."""

    key: int
    start: int
    token_ids: Sequence[int]
    slots: Sequence[int]  # of positions 0 .. start + len(token_ids) - 1; a range where they are consecutive

    @property
    def length(self) -> int:
        """Keys that its last token sees."""
        return self.start + len(self.token_ids)


@dataclass(slots=True)
class Group:
    """Sequences that share one attention call."""

    lengths: list[int]  # keys of each member, new ones included
    counts: list[int]  # queries of each member
    device: torch.device
    view: slice | None  # slots of a lone member that lie in a row
    gather: Tensor | None  # [n * S] slots; padding repeats a slot of the same sequence, so it is never garbage
    rows: Tensor | None  # [n * Q] which tokens of the pass are the queries; None: all, in order
    kept: Tensor | None  # [sum of counts] which of the n * Q outputs count; None: all
    _masks: dict[tuple[int | None, bool, torch.dtype], Tensor | None] = field(default_factory=dict)

    @property
    def members(self) -> int:
        return len(self.lengths)

    def mask(self, window: int | None, groups: int, dtype: torch.dtype) -> Tensor | None:
        """Additive [n, 1, groups * Q, S]; None when every query sees every key."""
        key = (window, groups > 1, dtype)
        if key not in self._masks:
            self._masks[key] = self._build_mask(window, groups, dtype)
        return self._masks[key]

    def _build_mask(self, window: int | None, groups: int, dtype: torch.dtype) -> Tensor | None:
        longest, most = max(self.lengths), max(self.counts)
        even = min(self.lengths) == longest and most == 1
        if even and (window is None or longest <= window):
            return None
        lengths = torch.tensor(self.lengths, device=self.device).view(-1, 1, 1)
        counts = torch.tensor(self.counts, device=self.device).view(-1, 1, 1)
        # Query j of a member stands at position length - count + j; padded ones stand with the last.
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
class Plan:
    """One packed pass."""

    token_ids: Tensor  # [1, T]
    positions: Tensor  # [1, T]
    slots: Tensor  # [T] where each token's keys and values go
    groups: list[Group]


class KeyValuePool:
    """Keys and values of every layer: [num_slots, Hkv, D] each, made when a layer first writes.

    Memory is asked for whole and touched only where tokens are written.
    """

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The pools of a layer whose new keys and values are [1, Hkv, T, D]."""
        pools = self._layers.get(index)
        if pools is None:
            pools = (self._empty(key), self._empty(value))
            self._layers[index] = pools
        return pools

    def fill(self, slots: Tensor) -> None:
        """Ordinary numbers into slots that nothing wrote, so that a timed pass reads no garbage."""
        for pools in self._layers.values():
            for pool in pools:
                pool[slots] = torch.full_like(pool[:1], 0.5)

    def reset(self) -> None:
        """Lets go of all memory; only when no sequence holds slots."""
        self._layers.clear()

    def _empty(self, like: Tensor) -> Tensor:
        return torch.empty(self._num_slots, like.shape[1], like.shape[3], dtype=like.dtype, device=like.device)


def build_plan(segments: Sequence[Segment], device: torch.device) -> Plan:
    """Who attends to what in one pass over `segments`, in their order."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    first_rows: list[int] = []
    for segment in segments:
        first_rows.append(len(ids))
        ids.extend(segment.token_ids)
        positions.extend(range(segment.start, segment.length))
        slots.extend(segment.slots[segment.start : segment.length])
    groups = [
        _group([segments[i] for i in chosen], [first_rows[i] for i in chosen], whole=len(chosen) == len(segments))
        for chosen in _choose_groups(segments, device)
    ]
    packed = torch.tensor([ids, positions, slots], dtype=torch.int64)
    if device.type != "cpu":
        packed = packed.to(device)
    for group in groups:
        group.device = device
        group.gather, group.rows, group.kept = (
            None if index is None else index.to(device) for index in (group.gather, group.rows, group.kept)
        )
    return Plan(packed[0:1], packed[1:2], packed[2], groups)


def _choose_groups(segments: Sequence[Segment], device: torch.device) -> list[list[int]]:
    """Indices of segments by group: long ones alone where they are a view, the others with their like.

    Padding in a group costs at most about as much again as the work itself.
    """
    if len(segments) == 1:
        return [[0]]
    alone_from = ALONE_FROM if device.type == "cpu" else 1 << 62
    groups: list[list[int]] = []
    shared: list[int] = []
    for index, segment in enumerate(segments):
        if isinstance(segment.slots, range) and segment.length >= alone_from:
            groups.append([index])
        else:
            shared.append(index)
    shared.sort(key=lambda i: (segments[i].length, len(segments[i].token_ids)))
    current: list[int] = []
    for index in shared:
        members = [segments[i] for i in (*current, index)]
        longest, most = max(s.length for s in members), max(len(s.token_ids) for s in members)
        padded = len(members) * longest * most
        useful = sum(s.length * len(s.token_ids) for s in members)
        if current and padded > 2 * useful + 4096:
            groups.append(sorted(current))
            current = []
        current.append(index)
    if current:
        groups.append(sorted(current))
    return groups


def _group(members: list[Segment], first_rows: list[int], *, whole: bool) -> Group:
    lengths = [segment.length for segment in members]
    counts = [len(segment.token_ids) for segment in members]
    longest, most = max(lengths), max(counts)
    even = min(counts) == most
    view, gather = None, None
    if len(members) == 1 and isinstance(members[0].slots, range):
        view = slice(members[0].slots[0], members[0].slots[0] + longest)
    else:
        table: list[int] = []
        for segment, length in zip(members, lengths, strict=True):
            table.extend(segment.slots[:length])
            table.extend([segment.slots[0]] * (longest - length))
        gather = torch.tensor(table)
    rows, kept = None, None
    if not (whole and even):
        rows = torch.tensor(
            [first + min(j, count - 1) for first, count in zip(first_rows, counts, strict=True) for j in range(most)]
        )
    if not even:
        kept = torch.tensor([i * most + j for i, count in enumerate(counts) for j in range(count)])
    return Group(lengths, counts, torch.device("cpu"), view, gather, rows, kept)


def paged_attention(
    module: Any,
    query: Tensor,  # [1, Hq, T, D], rotated
    key: Tensor,  # [1, Hkv, T, D]
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **passed: Any,
) -> tuple[Tensor, None]:
    """What a model's attention layer calls; the plan and the pool arrive as keyword arguments of `forward`."""
    plan: Plan = passed["dspark_plan"]
    pool: KeyValuePool = passed["dspark_pool"]
    keys, values = pool.layer(module.layer_idx, key, value)
    keys.index_copy_(0, plan.slots, key[0].transpose(0, 1))
    values.index_copy_(0, plan.slots, value[0].transpose(0, 1))
    window = sliding_window if sliding_window is not None else getattr(module, "sliding_window", None)
    sinks = s_aux if s_aux is not None else getattr(module, "sinks", None)
    if len(plan.groups) == 1:
        return _attend(plan.groups[0], query, keys, values, scaling, window, softcap, sinks).unsqueeze(0), None
    out = query.new_empty(query.shape[2], query.shape[1], values.shape[-1])
    for group in plan.groups:
        part = _attend(group, query, keys, values, scaling, window, softcap, sinks)
        rows = group.rows if group.kept is None else group.rows[group.kept]  # type: ignore[index]
        out.index_copy_(0, rows, part)  # type: ignore[arg-type]
    return out.unsqueeze(0), None


def _attend(
    group: Group,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Outputs of a group's own queries: [sum of counts, Hq, D], in the group's order."""
    n, kv_heads, heads = group.members, keys.shape[1], query.shape[1]
    if group.view is not None:
        k, v = keys[group.view].unsqueeze(0), values[group.view].unsqueeze(0)
    else:
        k = keys.index_select(0, group.gather).view(n, -1, kv_heads, keys.shape[2])  # type: ignore[arg-type]
        v = values.index_select(0, group.gather).view(n, -1, kv_heads, values.shape[2])  # type: ignore[arg-type]
    k, v = k.transpose(1, 2), v.transpose(1, 2)  # [n, Hkv, S, D]
    most = max(group.counts)
    q = query if group.rows is None else query.index_select(2, group.rows)
    # [1, Hq, n*Q, D] -> [n, Hq, Q, D]
    q = q if n == 1 else q[0].reshape(heads, n, most, -1).transpose(0, 1)
    ratio = heads // kv_heads
    fold = ratio > 1 and ratio * most <= FOLD_UP_TO
    mask = group.mask(window, ratio if fold else 1, query.dtype)
    if softcap is not None or sinks is not None:
        mask = group.mask(window, 1, query.dtype)
        out = _explicit(q, k, v, mask, scaling, softcap, sinks)
    elif fold:
        # The queries of a key-value group stand in one row: no expanded keys, one product instead of several.
        folded = q.reshape(n, kv_heads, ratio * most, q.shape[-1])
        out = scaled_dot_product_attention(folded, k, v, attn_mask=mask, scale=scaling)
        out = out.reshape(n, heads, most, v.shape[-1])
    else:
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling, enable_gqa=ratio > 1)
    flat = out.transpose(1, 2).reshape(n * most, heads, v.shape[-1])
    return flat if group.kept is None else flat.index_select(0, group.kept)


def _explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention by its formula, for models with a cap on scores or with sinks; [n, Hq, Q, D]."""
    ratio = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(ratio, dim=1), v.repeat_interleave(ratio, dim=1)
    scores = q @ k.transpose(-1, -2) * (scaling if scaling is not None else q.shape[-1] ** -0.5)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    if sinks is not None:
        sink = sinks.to(scores.dtype).view(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
        weights = torch.softmax(torch.cat((scores, sink), dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return weights @ v


def register() -> None:
    """Makes the name known to transformers; doing it again is harmless."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, paged_attention)
