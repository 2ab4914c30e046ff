"""Attention of one packed pass over a paged KV pool, for any model that uses `AttentionInterface`.

Each layer writes once and attends once per group of the plan.

Symbols: T tokens of the pass, n sequences of a group, Q queries and S keys of its longest member,
Hq and Hkv heads, D head size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from verify_service.kv_pool import KeyValuePool
from verify_service.plan import Group, PassPlan

_NAME = "dspark_paged"

# most query rows per key-value head to fold a head group into one product
FOLD_UP_TO = 128


class AttentionCall(NamedTuple):
    """Attention parameters of one layer, the same at every call."""

    layer: int
    scaling: float | None
    window: int | None
    softcap: float | None = None
    sinks: Tensor | None = None


def packed_pass(model: Any, plan: PassPlan, pool: KeyValuePool, keep: Tensor, **calls: Any) -> Any:
    """Runs a model that uses this attention; logits are of the rows in `keep`. `keep` is a tensor,
    as an int would slice the packed row as one sequence."""
    return model(
        input_ids=plan.token_ids,
        position_ids=plan.positions,
        use_cache=False,
        logits_to_keep=keep,
        dspark_plan=plan,
        dspark_pool=pool,
        **calls,
    )


def paged_attention(
    module: Any,
    query: Tensor,  # [1, Hq, T, D], rotated
    key: Tensor,  # [1, Hkv, T, D]
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **passed: Any,
) -> tuple[Tensor, None]:
    """The attention function of a model's layers, [1, T, Hq, D]; plan and pool are keyword
    arguments of the model's `forward`."""
    # A layer that passes None has no window, whatever its module says for other layers.
    window = (
        passed["sliding_window"]
        if "sliding_window" in passed
        else getattr(module, "sliding_window", None)
    )
    sinks = s_aux if s_aux is not None else getattr(module, "sinks", None)
    call = AttentionCall(module.layer_idx, scaling, window, softcap, sinks)
    if (seen := passed.get("dspark_calls")) is not None:
        seen.append((id(module), call))
    rows = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
    # Contiguous like the library's own attention, as some models view it in another shape.
    return attend_rows(
        passed["dspark_plan"], passed["dspark_pool"], call, *rows
    ).contiguous().unsqueeze(0), None


def attend_rows(
    plan: PassPlan,
    pool: KeyValuePool,
    call: AttentionCall,
    query: Tensor,
    key: Tensor,
    value: Tensor,
) -> Tensor:
    """Writes new keys and values [T, Hkv, D], attends with query [T, Hq, D]; returns [T, Hq, D]."""
    keys, values = pool.layer(call.layer, key, value)
    if plan.run is not None:
        keys[plan.run] = key
        values[plan.run] = value
    else:
        keys.index_copy_(0, plan.slots, key)
        values.index_copy_(0, plan.slots, value)
    if plan.kernel is not None and plan.tables is not None:
        if call.softcap is not None or call.sinks is not None:
            raise NotImplementedError("no kernel here caps scores or has sinks")
        paged = (-1, pool.page_size, *keys.shape[1:])
        return plan.kernel(
            query, keys.view(paged), values.view(paged), plan.tables, call.scaling, call.window
        )
    if len(plan.groups) == 1:
        return _attend(plan.groups[0], call, query, keys, values, pool)
    out = query.new_empty(*query.shape[:2], values.shape[-1])
    for group in plan.groups:
        part = _attend(group, call, query, keys, values, pool)
        rows = group.rows if group.kept is None else group.rows[group.kept]  # type: ignore[index]
        out.index_copy_(0, rows, part)  # type: ignore[arg-type]
    return out


def _attend(
    group: Group,
    call: AttentionCall,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    pool: KeyValuePool,
) -> Tensor:
    """Attention of one group: [sum of counts, Hq, D], in the group's order."""
    n, kv_heads, heads = group.members, keys.shape[1], query.shape[1]
    k: Tensor  # [n, Hkv, S, D], and so is v
    if group.view is not None:
        k, v = (each[group.view].transpose(0, 1).unsqueeze(0) for each in (keys, values))
    else:
        assert group.gather is not None
        k = pool.gather("keys", keys, group.gather, n)
        v = pool.gather("values", values, group.gather, n)
    most = max(group.counts)
    q = query if group.rows is None else query.index_select(0, group.rows)
    ratio, size = heads // kv_heads, q.shape[-1]
    explicit = call.softcap is not None or call.sinks is not None
    if not explicit and 1 < ratio <= FOLD_UP_TO // most:
        # Fold the queries of a key-value head into one row: no expanded keys, one product.
        folded = (
            q.reshape(n, most, kv_heads, ratio, size)
            .permute(0, 2, 3, 1, 4)
            .reshape(n, kv_heads, ratio * most, size)
        )
        mask = group.mask(call.window, ratio, query.dtype)
        out = scaled_dot_product_attention(folded, k, v, attn_mask=mask, scale=call.scaling)
        flat = out.view(n, kv_heads, ratio, most, v.shape[-1]).permute(0, 3, 1, 2, 4)
    else:
        q = q.reshape(n, most, heads, size).transpose(1, 2)
        mask = group.mask(call.window, 1, query.dtype)
        if explicit:
            out = _explicit(q, k, v, mask, call)
        else:
            out = scaled_dot_product_attention(
                q, k, v, attn_mask=mask, scale=call.scaling, enable_gqa=ratio > 1
            )
        flat = out.transpose(1, 2)
    flat = flat.reshape(n * most, heads, v.shape[-1])
    return flat if group.kept is None else flat.index_select(0, group.kept)


def _explicit(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, call: AttentionCall) -> Tensor:
    """Attention by its formula, for models with capped scores or sinks: [n, Hq, Q, D]."""
    ratio = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(ratio, dim=1), v.repeat_interleave(ratio, dim=1)
    scale = call.scaling if call.scaling is not None else q.shape[-1] ** -0.5
    scores = q @ k.transpose(-1, -2) * scale
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    if mask is not None:
        scores = scores + mask
    if call.sinks is None:
        return torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ v
    sinks = call.sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    weights = torch.softmax(torch.cat((scores, sinks), dim=-1), dim=-1)[..., :-1]
    return weights @ v


def use_in(model: Any) -> None:
    """Sets this as the attention of a transformers model; repeating it is harmless."""
    from transformers import AttentionInterface

    AttentionInterface.register(_NAME, paged_attention)
    model.set_attn_implementation(_NAME)
