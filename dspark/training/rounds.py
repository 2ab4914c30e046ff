"""Speculative rounds, replayed on text that the target generated.

The tokens a lossless verifier emits are the target's own, so the text is drawn first, many rows at
a time, and the rounds are drawn given the text. With q and p the distributions of drafter and
target at a slot, x the text's token there and P the chance that the slots before are kept (1 under
the token rule; `decoding.block_rule` of the block rule), the pair (draft, emitted token) has: kept,
draft = x, with probability min(1, q(x) / (P p(x))); otherwise rejected, and the draft came from the
normalised max(q - P p, 0). That joint distribution is the rule's own, for a prefix of any length;
only the order of drawing differs. Under the coupled rule text and drafts share their noise, so
nothing is left to chance.

After a rejection nothing is kept. Later drafts come from q alone: exact under `token` and
`coupled`. Under `block` they also depend, weakly, on the target's probabilities of the rejected
tokens, which the text does not contain; q is used in their place.

T tokens, A anchors, k slots, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dspark.decoding.gumbel import exponentials
from dspark.decoding.sampling import SamplingColumns, draft_distribution, draw
from dspark.model.family import Anchors, ContextTokens, Drafter, Entries
from dspark.model.target import TargetTaps
from dspark.types import Rule, SamplingParams

TOP_K_CUT = 64
_FLOATS = 1 << 26  # logits that are held at a time


class JudgedBlocks(NamedTuple):
    """A drafted and judged block at every anchor of one text."""

    accepted: Tensor  # [A] how many slots were accepted, 0..k
    confidence: Tensor  # [A, k] confidence logits, given the drafts before each slot


def distribution(logits: Tensor, temperature: float) -> Tensor:
    """logits [..., V] -> probabilities at the temperature, one-hot at 0; in fp32, as there are many
    of them."""
    logits = logits.float()
    if temperature == 0:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    return torch.softmax(logits / temperature, dim=-1)


class _Text(NamedTuple):
    """One text, with the target's distributions and the noise of its tokens."""

    ids: Tensor  # [T]
    wanted: Tensor  # [T - first, V] target's distributions of the tokens from first + 1 on
    first: int
    noise: Tensor | None  # [T - first, V] their noise, for the coupled rule at temperatures above 0


@torch.inference_mode()
def judge(
    drafter: Drafter,
    target: Any,  # a causal language model of transformers
    ids: Tensor,  # [1, T] with at least k tokens after the last anchor
    anchors: Tensor,  # [A], at least 1
    params: SamplingParams,  # seed and choice: of the coupled rule, as the text was drawn
    *,
    generator: torch.Generator,
    cut: int | None = TOP_K_CUT,
) -> JudgedBlocks:
    """Drafts a block at every anchor and judges it against the text. No random state but
    `generator`'s is used."""
    first, layers = int(anchors.min()), drafter.target_layer_ids
    with TargetTaps(target, layers) as taps:
        logits = target(input_ids=ids, use_cache=False, logits_to_keep=ids.shape[1] - first).logits[
            0
        ]
        features = taps.collect()[0] if layers else None
    noise = None
    if params.rule is Rule.COUPLED and params.temperature > 0:
        places = range(first + 1, ids.shape[1] + 1)
        noise = exponentials([params] * len(places), places, logits.shape[-1])
    text = _Text(ids[0], distribution(logits, params.temperature), first, noise)
    most = max(1, _FLOATS // (drafter.config.block_size * logits.shape[-1]))
    parts = []
    whole = anchors_at(drafter, features, text.ids, anchors)
    for begin in range(0, len(anchors), most):
        at = _part(whole, slice(begin, begin + most))
        parts.append(_blocks(drafter, text, at, params, generator, cut))
    return JudgedBlocks(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _part(whole: Anchors, part: slice) -> Anchors:
    ids, positions, (keys, values, lengths, *_), last = whole
    entries = Entries(keys[:, part], values[:, part], lengths[part])
    return Anchors(ids[part], positions[part], entries, None if last is None else last[part])


def _blocks(
    drafter: Drafter,
    text: _Text,
    at: Anchors,
    params: SamplingParams,
    generator: torch.Generator,
    cut: int | None,
) -> JudgedBlocks:
    previous, anchors = at.ids, at.positions
    count, size, columns = len(anchors), drafter.config.block_size, SamplingColumns.of([params])
    proposal = drafter.propose(at, size)
    alive = torch.ones(count, dtype=torch.bool)
    accepted = torch.zeros(count, dtype=torch.int64)
    kept = torch.ones(count)  # P
    before = []
    for slot in range(size):
        before.append(previous)
        logits = proposal.step(previous)
        ids, q = draft_distribution(logits, columns, cut or logits.shape[-1])
        if not torch.isfinite(q).all():
            raise FloatingPointError("the drafter's logits hold NaN or infinity")
        truth, row = text.ids[anchors + slot + 1], anchors + slot - text.first
        if text.noise is not None:
            place = (q / text.noise[row[:, None], ids]).argmax(dim=-1, keepdim=True)
            previous = ids.gather(-1, place).squeeze(-1)
            alive = alive & (previous == truth)
            accepted += alive
            continue
        told = torch.where(ids == truth[:, None], q, 0.0).sum(dim=-1)
        ratio = told / (kept * text.wanted[row, truth]).clamp(min=1e-12)
        alive = alive & (torch.rand(count, generator=generator) < ratio)
        accepted += alive
        first_rejection = ~alive & (accepted == slot)
        p = text.wanted[row[:, None], ids] * kept[:, None]
        surplus = torch.where(first_rejection[:, None], (q - p).clamp(min=0), q)
        surplus = torch.where(surplus.sum(-1, keepdim=True) > 0, surplus, q)
        drawn = ids.gather(
            -1, draw(surplus, torch.rand(count, generator=generator))[:, None]
        ).squeeze(-1)
        previous = torch.where(alive, truth, drawn)
        if params.rule is Rule.BLOCK:
            kept = torch.where(alive, (1 / ratio).clamp(max=1.0), 1.0)
    return JudgedBlocks(accepted, proposal.confidence_logits(torch.stack(before, dim=1)))


class EvaluatedRound(NamedTuple):
    """One round of the loop; lengths as `dspark evaluate` counts them."""

    at: int  # index of its anchor among the new tokens
    drafted: int  # slots verified, up to the text's end if that was among the accepted ones
    accepted: int
    emitted: int  # accepted tokens and the target's own


def play(
    accepted: Sequence[int], lengths: Sequence[int], ends: Sequence[bool], new_tokens: int
) -> list[EvaluatedRound]:
    """The rounds from the first anchor on, until `new_tokens` are there or the text ends.

    `accepted[i]` and `lengths[i]` (slots verified, any rule that does not peek) belong to the
    anchor at the i-th new token, `ends[i]` says whether that token ends the text. The first token
    comes from the prefill and is no round. A round whose accepted drafts end the text counts up to
    the end, without the target's own token.
    """
    rounds, at = [], 0
    while at + 1 < new_tokens and not ends[at]:
        kept = min(accepted[at], lengths[at])
        drafted = ends[at + 1 : at + 1 + kept]
        if any(drafted):
            last = drafted.index(True) + 1
            rounds.append(EvaluatedRound(at, last, last, last))
            break
        rounds.append(EvaluatedRound(at, lengths[at], kept, kept + 1))
        at += kept + 1
    return rounds


def anchors_at(
    drafter: Drafter,
    # [T, m*H] raw taps, the last one need not be there; None where needs.row is false
    features: Tensor | None,
    token_ids: Tensor,  # [T] int64
    anchors: Tensor,  # [A] int64, positions of the anchors, at least needs.lag
) -> Anchors:
    """A blocks behind one text, whose entries are views of the same ones."""
    needs, count = drafter.needs, len(token_ids) - 1  # the last token can only be an anchor
    rows = drafter.project(features) if needs.row and features is not None else None
    ids, index = token_ids[needs.lag :][:count], torch.arange(count, device=token_ids.device)
    if needs.past:
        tokens = ContextTokens(None, ids.unsqueeze(0), index.unsqueeze(0))
    else:
        told = None if needs.token == "none" else ids
        tokens = ContextTokens(None if rows is None else rows[:count], told, index)
    keys, values = drafter.ingest(tokens)
    if not needs.past:
        keys, values = keys.unsqueeze(1), values.unsqueeze(1)
    size = (-1, len(anchors), -1, -1, -1)
    entries = Entries(keys.expand(size), values.expand(size), anchors - needs.lag)
    last_rows = rows[anchors - 1] if needs.lag and rows is not None else None
    return Anchors(token_ids[anchors], anchors, entries, last_rows)
