"""Logits to distributions to tokens: what sampling parameters mean, and what a drafter sends.

A row's distribution is softmax(logits / T), cut to the tokens of at least min-p times the likeliest
one's probability, then to the top-k of them, then to the top-p of what those have together,
renormalised, in float64: vLLM's order. A greedy row is one-hot. Ties always go to the lowest id.
Changes to logits before that are in `shaping`. Noise is an argument. Knows nothing of sequences,
services or acceptance.

Invariant 3, q sent is q sampled: `drafting.DraftNoise` and the reference's `draw_sparse` draw from
the very float32 numbers that `draft_distribution` returns. Shapes: n rows, V vocabulary, K entries
of a sparse distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from dspark.decoding.philox import Purpose, key_of, uniforms
from dspark.types import Cursor, SamplingParams

SHALLOW = 1024  # largest numbers of a row that are found faster than the row is sorted


@dataclass(frozen=True, slots=True)
class SamplingColumns:
    """The sampling parameters of n rows as columns, with flags that are known without reading from
    a device.

    Columns of one row stand for any number of rows under the same parameters.
    """

    temperature: Tensor  # [n, 1] float64; 1 where greedy
    top_k: Tensor  # [n, 1] int64; 0 keeps everything
    top_p: Tensor  # [n, 1] float64
    greedy: Tensor  # [n, 1] bool
    all_greedy: bool
    any_greedy: bool
    any_top_k: bool
    any_top_p: bool
    only_nucleus: Tensor  # [n, 1] bool; no cut but top-p
    uncut: Tensor  # [n, 1] bool; no cut at all
    min_p: Tensor | None = None  # [n, 1] float64; None where no row has one
    deepest: int = 0  # the largest top-k, where every row that is not greedy has one; else 0

    @staticmethod
    def of(
        all_params: Sequence[SamplingParams], device: torch.device | str = "cpu"
    ) -> SamplingColumns:
        """The columns of these parameters, one row each; a single row if all rows are equal."""
        shapes = tuple(
            (params.temperature, params.top_k, params.top_p, params.min_p) for params in all_params
        )
        return _columns(shapes[:1] if len(set(shapes)) == 1 else shapes, device)


@lru_cache(maxsize=256)  # a running cohort asks for the same columns round after round
@torch.inference_mode(mode=False)
def _columns(
    shapes: tuple[tuple[float, int, float, float], ...], device: torch.device | str
) -> SamplingColumns:
    """The columns of (temperature, top_k, top_p, min_p) per row."""
    all_params = [
        SamplingParams(temperature, top_p, top_k, min_p=min_p)
        for temperature, top_k, top_p, min_p in shapes
    ]
    greedy = [params.greedy for params in all_params]
    depths = [params.top_k for params in all_params if not params.greedy]
    # a greedy row is scaled and cut by nothing
    shaped = [SamplingParams() if params.greedy else params for params in all_params]
    only_nucleus = [not (each.top_k or each.min_p) for each in shaped]
    uncut = [free and each.top_p == 1.0 for free, each in zip(only_nucleus, shaped, strict=True)]

    def column(values: Sequence[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device).unsqueeze(-1)

    min_p = [each.min_p for each in shaped]
    return SamplingColumns(
        temperature=column([each.temperature for each in shaped], torch.float64),
        top_k=column([each.top_k for each in shaped], torch.int64),
        top_p=column([each.top_p for each in shaped], torch.float64),
        greedy=column(greedy, torch.bool),
        all_greedy=all(greedy),
        any_greedy=any(greedy),
        any_top_k=any(each.top_k > 0 for each in shaped),
        any_top_p=any(each.top_p < 1.0 for each in shaped),
        min_p=column(min_p, torch.float64) if any(min_p) else None,
        only_nucleus=column(only_nucleus, torch.bool),
        uncut=column(uncut, torch.bool),
        deepest=max(depths) if depths and min(depths) > 0 else 0,
    )


def largest(rows: Tensor) -> Tensor:
    """rows [n, V] -> index of each row's largest number [n], the first of equals; the first NaN if
    there is one."""
    if rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64):
        # a vectorised search, unlike torch's on a CPU
        return torch.as_tensor(rows.detach().numpy().argmax(axis=-1))
    return rows.argmax(dim=-1)


def best(logits: Tensor) -> Tensor:
    """Most likely id of each row [n], the lowest of equals. FloatingPointError for NaN and
    infinity."""
    ids = largest(logits)
    if not bool(torch.isfinite(logits.gather(-1, ids.unsqueeze(-1))).all()):
        raise FloatingPointError("logits hold NaN or infinity")
    return ids


def distribution(logits: Tensor, columns: SamplingColumns, *, waits: bool = True) -> Tensor:
    """logits [n, V] -> probabilities [n, V] float64 under each row's parameters. waits: if False,
    never synchronises with the device; no row may be greedy then."""
    if columns.all_greedy:
        return _one_hot(best(logits), logits.shape[-1])
    probs = torch.softmax(logits.to(torch.float64, copy=True).div_(columns.temperature), dim=-1)
    if columns.any_top_k or columns.any_top_p or columns.min_p is not None:
        probs = _truncate(probs, columns, waits=waits)
    if columns.any_greedy:
        probs = torch.where(columns.greedy, _one_hot(best(logits), logits.shape[-1]), probs)
    return probs


def draw(probs: Tensor, u: Tensor) -> Tensor:
    """Draws by the inverse of the cumulative sum: probs [n, V] float64 >= 0 of any sum, u [n] in
    [0, 1) -> ids [n]. FloatingPointError for a row without mass or with NaN.

    Divides by each row's own sum and never returns an id of probability zero.
    """
    mass = probs.cumsum(dim=-1)
    ids = torch.searchsorted(mass, u.unsqueeze(-1) * mass[:, -1:], right=True).clamp_(
        max=probs.shape[-1] - 1
    )
    # false for NaN too
    if not bool(((probs.gather(-1, ids) > 0) & (mass[:, -1:] < torch.inf)).all()):
        ids = nearest_possible(probs, ids)
        if not bool(((probs.gather(-1, ids) > 0) & (mass[:, -1:] < torch.inf)).all()):
            raise FloatingPointError("a distribution has no mass or is not numbers")
    return ids.squeeze(-1)


def draft_distribution(
    logits: Tensor, columns: SamplingColumns, entries: int
) -> tuple[Tensor, Tensor]:
    """The distributions a drafter draws from and sends: logits [n, V] -> ids [n, K] int64, probs
    [n, K] float32.

    K is 1 if every row is greedy, else min(entries, V). Ids of a row are distinct, most likely
    first; tokens that are cut have probability 0. A greedy row has all its mass on entry 0, so that
    entry alone may be sent. Rows that are no numbers stay none. Never synchronises with the device.
    """
    if columns.all_greedy:
        ids = largest(logits).unsqueeze(-1)
        return ids, _certain(logits, ids)
    likeliest, ids = logits.topk(min(entries, logits.shape[-1]), dim=-1)
    scaled = likeliest.double() / columns.temperature
    probs = torch.softmax(scaled, dim=-1)
    rank = torch.arange(ids.shape[-1], device=ids.device)
    if columns.min_p is not None:
        probs = probs.masked_fill(probs < columns.min_p * probs[:, :1], 0.0)
        probs = probs / probs.sum(dim=-1, keepdim=True)
    if columns.any_top_k:
        probs = probs.masked_fill((columns.top_k > 0) & (rank >= columns.top_k), 0.0)
        probs = probs / probs.sum(dim=-1, keepdim=True)
    if columns.any_top_p:
        # Top-p counts the mass of the whole row; under a top-k that fits, the entries are the
        # whole.
        rows = logits.double() / columns.temperature
        if columns.min_p is not None:
            # min-p cuts the whole row and the entries alike.
            least = scaled[:, :1] + columns.min_p.log()
            rows, scaled = (part.masked_fill(part < least, -torch.inf) for part in (rows, scaled))
        whole = torch.logsumexp(rows, dim=-1, keepdim=True)
        covered = torch.exp(torch.logsumexp(scaled, dim=-1, keepdim=True) - whole)
        covered = torch.where((columns.top_k > 0) & (columns.top_k <= ids.shape[-1]), 1.0, covered)
        before = probs.cumsum(dim=-1).roll(1, dims=-1) * covered
        cut = (rank > 0) & (before >= columns.top_p) & (columns.top_p < 1.0)
        probs = probs.masked_fill(cut, 0.0)
        probs = probs / probs.sum(dim=-1, keepdim=True)
    if columns.any_greedy:
        first = largest(logits).unsqueeze(-1)
        # among equals the sort may have put another id first
        displaced = torch.where(ids == first, ids[:, :1], ids)
        ids = torch.where(columns.greedy, torch.where(rank == 0, first, displaced), ids)
        probs = torch.where(columns.greedy, _certain(logits, first) * (rank == 0), probs)
    return ids, probs.float()


def _certain(logits: Tensor, first: Tensor) -> Tensor:
    """Probability 1 of each row's likeliest id [n, 1], NaN where the row is no numbers."""
    sound = torch.isfinite(logits.gather(-1, first)).float()
    return sound / sound


def draw_sparse(ids: Tensor, probs: Tensor, u: Tensor) -> Tensor:
    """Draws from ids [n, K], probs [n, K] float32 as sent, by u [n] float64 -> drafted ids [n]."""
    return ids.gather(-1, draw(probs.double(), u).unsqueeze(-1)).squeeze(-1)


def draft_uniforms(
    all_params: Sequence[SamplingParams], cursors: Sequence[Cursor], slots: int
) -> Tensor:
    """The uniforms for a cohort's drafts: [n, slots] float64; column k - 1 belongs to slot k."""
    keys = [
        key_of(params, cursor, Purpose.DRAFT)
        for params, cursor in zip(all_params, cursors, strict=True)
    ]
    seed, choice, rule, purpose, epoch, position = np.array(keys, np.uint64).T[:, :, None]
    return torch.from_numpy(
        uniforms(seed, choice, rule, purpose, epoch, position, np.arange(1, slots + 1))
    )


def _one_hot(ids: Tensor, vocab: int) -> Tensor:
    return torch.zeros(len(ids), vocab, dtype=torch.float64, device=ids.device).scatter_(
        -1, ids.unsqueeze(-1), 1.0
    )


def _truncate(probs: Tensor, columns: SamplingColumns, *, waits: bool) -> Tensor:
    """Each row's `_kept` most likely tokens, renormalised; uncut rows unchanged. The number comes
    from sorted values, so ties cannot matter."""
    uncut = columns.uncut
    depth = columns.deepest if columns.deepest <= SHALLOW else 0
    first = _largest_first(probs, depth or (SHALLOW if waits and probs.device.type == "cpu" else 0))
    kept = _kept(probs, first, columns)
    if (
        not depth
        and first.shape[-1] < probs.shape[-1]
        and bool(((kept == first.shape[-1]) & ~uncut).any())
    ):
        first = _largest_first(probs, 0)  # the cut of a row lies deeper
        kept = _kept(probs, first, columns)
    least = first.gather(-1, kept - 1)
    inside = probs >= least
    over = inside.sum(dim=-1, keepdim=True) - kept  # surplus equals of the last one kept
    if not waits or bool((over > 0).any()):
        equal = probs == least
        room = equal.sum(dim=-1, keepdim=True) - over
        inside &= ~equal | (equal.cumsum(dim=-1) <= room)
    cut = probs * (inside | uncut)
    return cut / torch.where(uncut, 1.0, _sums(cut))


def _kept(probs: Tensor, first: Tensor, columns: SamplingColumns) -> Tensor:
    """How many tokens each row keeps [n, 1], from its largest numbers `first`: if it keeps all of
    them, the cut may lie deeper."""
    most, vocab = first.shape[-1], probs.shape[-1]
    kept = (
        torch.where(columns.top_k > 0, columns.top_k, most).clamp_(max=most).expand(len(probs), 1)
    )
    if columns.min_p is not None:  # equals are kept or cut together
        likely = (first >= columns.min_p * first[:, :1]).sum(dim=-1, keepdim=True)
        # 0 for a row of NaN; a gather at -1 crashes a GPU
        kept = torch.minimum(kept, likely.clamp_(min=1))
    if columns.any_top_p:
        mass, cuts = first.cumsum(dim=-1), columns.top_p < 1.0
        bound = columns.top_p * torch.where(
            columns.only_nucleus, _sums(probs), mass.gather(-1, kept - 1)
        )
        nucleus = torch.searchsorted(mass, bound) + 1  # the fewest whose mass reaches the bound
        if most < vocab:  # the mass of a row that something else cuts deeper is not known here
            cuts = cuts & (
                columns.only_nucleus
                | (kept < most)
                | ((columns.top_k > 0) & (columns.top_k <= most))
            )
        kept = torch.where(cuts, torch.minimum(nucleus, kept), kept)
    return kept


def _sums(rows: Tensor) -> Tensor:
    """The sum of each row [n, 1], the same in any batch: torch with several CPU threads sums a lone
    row in two parts."""
    if rows.device.type == "cpu":
        return torch.from_numpy(rows.numpy().sum(axis=-1, keepdims=True))
    return rows.sum(dim=-1, keepdim=True)


def _largest_first(probs: Tensor, most: int) -> Tensor:
    """The `most` largest numbers of each row, or all for 0: [n, most or V]."""
    vocab = probs.shape[-1]
    most = min(most or vocab, vocab)
    if probs.device.type != "cpu":
        return (
            probs.topk(most, dim=-1).values
            if most < vocab
            else probs.sort(dim=-1, descending=True).values
        )
    values = probs.numpy()  # numpy's search and sort are vectorised, torch's on a CPU are not
    if most < vocab:
        values = np.partition(values, vocab - most, axis=-1)[:, vocab - most :]
    return torch.from_numpy(np.sort(values, axis=-1)).flip(-1)


def nearest_possible(probs: Tensor, ids: Tensor) -> Tensor:
    """Moves each id [n, 1] to the next one of positive probability, or to the last one, without
    synchronising.

    Needed when a parallel cumulative sum is not monotone to the last bit, and when u * sum rounds
    up to the sum.
    """
    possible, columns = probs > 0, torch.arange(probs.shape[-1], device=probs.device)
    after = torch.where(possible & (columns >= ids), columns, probs.shape[-1]).amin(
        dim=-1, keepdim=True
    )
    last = torch.where(possible, columns, 0).amax(dim=-1, keepdim=True)
    return torch.minimum(after, last)
