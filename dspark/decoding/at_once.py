"""Greedy matching, the ratio rules and the coupled rule in tensor operations alone, for devices
other than the host; drafts are drawn so on every device.

No branch and no shape depends on a computed number, so all of it is launched behind a pass without
synchronising, and may be compiled or captured. `judge_at_once` makes the inputs and reads the
results. The formulas are those of `token_rule`, `block_rule` and `coupled_rule`; a test compares
them.

Symbols: m sequences, L slots of the longest block, K entries of its widest q, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dspark.decoding.gumbel import NEAR_TIE, gumbel_argmax
from dspark.decoding.sampling import SamplingColumns, distribution, nearest_possible


class PaddedCases(NamedTuple):
    """Inputs of the cases, padded: rows repeat the last one, added entries have probability 0."""

    rows: Tensor  # [m, L + 1] of the packed pass
    lengths: Tensor  # [m] drafted slots
    drafted: Tensor  # [m, L]
    block: Tensor  # [m] whether the block rule judges, else the token rule
    q_ids: Tensor  # [m, L, K]
    q_probs: Tensor  # [m, L, K] float64, of sum 1 where a slot was drafted
    accept_u: Tensor  # [m, L]
    emit_u: Tensor  # [m, L + 1] by the number of drafted tokens kept


class Decision(NamedTuple):
    """The verdicts of m sequences, and what is fetched with them."""

    accepted: Tensor  # [m]
    token: Tensor  # [m]
    sound: Tensor  # [m] whether the numbers that decided are finite
    p: Tensor  # [m, L, K] the target's probabilities of q's entries; empty where q does not matter
    ties: Tensor  # [m] positions of the coupled rule that rounding could decide otherwise


def greedy(logits: Tensor, at: PaddedCases) -> Decision:
    """Greedy matching of logits [T, V]: the likeliest tokens decide which drafts are kept."""
    rows = logits[at.rows]
    top = rows.argmax(dim=-1)
    accepted = _matched(top, at)
    sound = torch.isfinite(rows.gather(-1, top.unsqueeze(-1))).all(dim=-1).all(dim=-1)
    return Decision(accepted, _at(top, accepted), sound, at.q_probs, torch.zeros_like(accepted))


def coupled(logits: Tensor, at: PaddedCases, columns: SamplingColumns, noise: Tensor) -> Decision:
    """The coupled rule on shaped logits [T, V]: keeps drafts that the target draws too. Columns are
    as in `ratio`; noise [m * (L + 1), V]."""
    probs = distribution(logits[at.rows].flatten(0, 1), columns, waits=False)
    drawn, leads, sound = (part.view(at.rows.shape) for part in gumbel_argmax(probs, noise))
    accepted = _matched(drawn, at)
    looked_at = torch.arange(at.rows.shape[1], device=logits.device) <= accepted.unsqueeze(-1)
    ties = ((leads < NEAR_TIE) & looked_at).sum(dim=-1)
    return Decision(
        accepted, _at(drawn, accepted), (sound | ~looked_at).all(dim=-1), at.q_probs, ties
    )


def _matched(tokens: Tensor, at: PaddedCases) -> Tensor:
    """tokens [m, L + 1] of the target -> how many leading drafts equal them [m]."""
    slots = torch.arange(at.drafted.shape[1], device=tokens.device)
    matched = (tokens[:, :-1] == at.drafted) & (slots < at.lengths.unsqueeze(-1))
    return matched.long().cumprod(dim=-1).sum(dim=-1)


def ratio(logits: Tensor, at: PaddedCases, columns: SamplingColumns) -> Decision:
    """The ratio rules on shaped logits [T, V]; columns: a row for each of m * (L + 1), or one."""
    m, longest = at.drafted.shape
    probs = distribution(logits[at.rows].flatten(0, 1), columns, waits=False).view(
        m, longest + 1, -1
    )
    p = probs[:, :-1].gather(-1, at.q_ids)
    own = (at.q_ids == at.drafted.unsqueeze(-1)) & (at.q_probs > 0)
    q, mine = (torch.where(own, part, 0.0).sum(dim=-1) for part in (at.q_probs, p))
    slots = torch.arange(longest, device=logits.device)
    possible = (q > 0) & (slots < at.lengths.unsqueeze(-1))
    counting = possible.long().cumprod(dim=-1).sum(dim=-1, keepdim=True)  # see `Slots`
    counts = slots < counting
    kept, alive = _longest(p, mine / q, counts, counting, at)
    chance = torch.where(q > mine, mine / q, 1.0)
    run = ((at.accept_u < chance) & counts).long().cumprod(dim=-1).sum(dim=-1)
    accepted = torch.where(at.block, kept, run)
    stopped = accepted < counting.squeeze(-1)
    weight = torch.where(
        at.block & stopped & (accepted > 0), _at(alive, (accepted - 1).clamp(min=0)), 1.0
    )
    last = _at(probs, accepted) * weight.unsqueeze(-1)
    token, sound = drawn(_without(last, accepted, stopped, at), _at(at.emit_u, accepted))
    numbers = torch.isfinite(p).flatten(1).all(dim=-1)
    return Decision(accepted, token, sound & numbers, p, torch.zeros_like(accepted))


def _longest(
    p: Tensor, by: Tensor, counts: Tensor, counting: Tensor, at: PaddedCases
) -> tuple[Tensor, Tensor]:
    """(tokens that the block rule keeps [m], P of every slot [m, L]); by: p over q of the drafted
    tokens."""
    alive, before, after = torch.ones_like(by[:, 0]), [], []
    for slot in range(by.shape[1]):
        before.append(alive)
        grown = torch.where(alive > 0, (alive * by[:, slot]).clamp(max=1.0), 0.0)
        alive = torch.where(counts[:, slot], grown, 0.0)
        after.append(alive)
    earlier, later = torch.stack(before, dim=1), torch.stack(after, dim=1)
    left = (earlier - torch.minimum(earlier.unsqueeze(-1) * p, at.q_probs).sum(dim=-1)).clamp(
        min=0.0
    )
    rest, lost = torch.nn.functional.pad(left[:, 1:], (0, 1)), 1.0 - later
    inner = torch.where(rest + lost > 0, rest / (rest + lost), 1.0)
    slots = torch.arange(by.shape[1], device=by.device)
    candidate = torch.where((slots == counting - 1) | (later <= 0), later, inner)
    heads = (at.accept_u < candidate) & counts
    return (heads * (slots + 1)).amax(dim=-1), later


def _without(last: Tensor, accepted: Tensor, stopped: Tensor, at: PaddedCases) -> Tensor:
    """The residual: last [m, V] minus q of the rejected slot, if any, renormalised."""
    slot = accepted.clamp(max=at.drafted.shape[1] - 1)
    ids, probs = _at(at.q_ids, slot), _at(at.q_probs, slot) * stopped.unsqueeze(-1)
    rest = (last - torch.zeros_like(last).scatter_add(-1, ids, probs)).clamp(min=0.0)
    mass = rest.sum(dim=-1, keepdim=True)
    return torch.where(mass > 0, rest / mass, last)


def drawn(probs: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """`sampling.draw` without synchronising: (ids [m], whether the row can be drawn from [m])."""
    mass = probs.cumsum(dim=-1)
    total = mass[:, -1:]
    ids = nearest_possible(probs, torch.searchsorted(mass, u.unsqueeze(-1) * total, right=True))
    return ids.squeeze(-1), ((total > 0) & (total < torch.inf)).squeeze(-1)  # false for NaN


def _at(rows: Tensor, place: Tensor) -> Tensor:
    """rows [m, n, ...] at place [m]: [m, ...]."""
    index = place.view(-1, *[1] * (rows.dim() - 1)).expand(-1, 1, *rows.shape[2:])
    return rows.gather(1, index).squeeze(1)
