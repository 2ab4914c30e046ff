"""The lossless accept-or-correct rule, once: sampled by the verifier, enumerated by the tests.

Token rule: keep the drafted token x of a slot with probability min(1, p(x) / q(x)); at the first one not kept the
target adds a token from norm(max(p - q, 0)), after all kept ones from p. Exact for any q, provided it is the q that x
was drawn from and that sending the slot did not depend on x. Everything is float64. At temperature 0 this is greedy
matching whatever q says. Noise is passed in, or keyed by `philox` (invariant 4).

Symbols: l drafted tokens of one sequence, which owns l + 1 rows of a packed pass; K entries of a sparse q.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.decoding.philox import Purpose, uniforms
from dspark.decoding.sampling import LawColumns, best, distribution, draw
from dspark.errors import Unsupported
from dspark.types import Cursor, Law, Rule, SparseQ

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SUM_TOLERANCE = 1e-3  # a float32 q of thousands of entries stays well inside


@dataclass(frozen=True, slots=True)
class Case:
    """One sequence of a packed pass, `validate_q` passed: its rows start at `first_row`, the anchor's."""

    cursor: Cursor
    law: Law
    first_row: int
    draft_ids: Sequence[int]
    q: SparseQ


def accept_probability(p: npt.ArrayLike, q: npt.ArrayLike) -> Floats:
    """Chance to keep a token of target probability p and draft probability q: min(1, p / q), 0 / 0 read as 1."""
    p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
    kept = np.ones(np.broadcast_shapes(p.shape, q.shape))
    np.divide(p, q, out=kept, where=q > p)
    return kept


def residual(p: Tensor, q: Tensor) -> Tensor:
    """What the target adds where a drafted token was not kept: [..., V] float64; p where p never exceeds q."""
    rest = (p - q).clamp_(min=0.0)
    mass = rest.sum(dim=-1, keepdim=True)
    return torch.where(mass > 0, rest / mass, p)


def token_rule(
    target_probs: Tensor,  # [l + 1, V] float64
    draft_ids: Sequence[int],  # [l]
    q: tuple[npt.NDArray[np.integer], npt.NDArray[np.floating]],  # ids and probs [l, K]
    accept_u: npt.ArrayLike,  # [l] in [0, 1)
    emit_u: float,
) -> tuple[int, int]:
    """(accepted, next token) of one sequence."""
    ids, probs = (np.asarray(part).reshape(len(draft_ids), -1) for part in q)
    slots = _Slots.of([draft_ids], [ids.ravel()], [probs.ravel()], [ids.shape[1]])
    accept = np.asarray(accept_u, np.float64).reshape(len(draft_ids))
    return _decide(target_probs, [0], slots, accept, lambda _: np.array([emit_u]))[0]


def judge(logits: Tensor, cases: Sequence[Case]) -> list[tuple[int, int]]:
    """(accepted, next token) of every sequence of a packed pass: logits [T, V] of any float dtype.

    Raises FloatingPointError when the logits of any case are not numbers.
    """
    for case in cases:
        if case.law.rule is not Rule.TOKEN:
            raise Unsupported("rule", f"the {case.law.rule.name.lower()} rule is not supported yet")
    verdicts: list[tuple[int, int]] = [(0, 0)] * len(cases)
    for greedy, rule in ((True, _judge_greedy), (False, _judge_sampled)):
        chosen = [index for index, case in enumerate(cases) if case.law.greedy is greedy]
        if chosen:
            for index, verdict in zip(chosen, rule(logits, [cases[i] for i in chosen]), strict=True):
                verdicts[index] = verdict
    return verdicts


def first_token(logits: Tensor, law: Law, cursor: Cursor) -> int:
    """The token a prefill adds: logits [V] of its last position; cursor.committed_len counts the tokens it ran."""
    if law.greedy:
        return int(best(logits.unsqueeze(0)))
    probs = distribution(logits.unsqueeze(0), LawColumns.of([law], logits.device))
    u = uniforms(law.seed, law.choice, law.rule, Purpose.EMIT, cursor.epoch, cursor.anchor_position, [0])
    return int(draw(probs, torch.from_numpy(u).to(probs.device)))


def validate_q(
    ids: npt.NDArray[np.integer], probs: npt.NDArray[np.floating], draft_ids: Sequence[int], vocab: int
) -> str | None:
    """A sentence that says why these are not the distributions of a sampled draft, or None."""
    slots = len(draft_ids)
    if ids.ndim != 2 or ids.shape != probs.shape:
        return f"q: ids have shape {ids.shape} and probabilities {probs.shape}"
    if slots == 0:
        return None if ids.size == 0 else "q: entries without drafted tokens"
    if ids.shape[0] != slots or ids.shape[1] == 0:
        return f"q: {ids.shape[0]} slots of {ids.shape[1]} entries for {slots} drafted tokens"
    if ids.min() < 0 or ids.max() >= vocab:
        return f"q_ids: an id is not below the vocabulary size {vocab}"
    if not np.isfinite(probs).all():
        return "q_probs: a probability is not finite"
    if probs.min() < 0:
        return "q_probs: a probability is negative"
    worst = float(np.abs(probs.sum(axis=1, dtype=np.float64) - 1.0).max())
    if worst > SUM_TOLERANCE:
        return f"q_probs: a slot's probabilities miss a sum of 1 by {worst:.3g}"
    ranked = np.sort(ids, axis=1)
    if (ranked[:, 1:] == ranked[:, :-1]).any():
        return "q_ids: an id appears twice in a slot"
    if not ((ids == np.asarray(draft_ids, np.int64)[:, None]) & (probs > 0)).any(axis=1).all():
        return "draft_ids: a drafted token is outside the support of its q"
    return None


def _judge_greedy(logits: Tensor, cases: Sequence[Case]) -> list[tuple[int, int]]:
    """Greedy matching: no softmax, and q does not matter."""
    top = best(_owned_rows(logits, cases)).tolist()
    verdicts, row = [], 0
    for case in cases:
        accepted = 0
        for token in case.draft_ids:
            if token != top[row + accepted]:
                break
            accepted += 1
        verdicts.append((accepted, int(top[row + accepted])))
        row += len(case.draft_ids) + 1
    return verdicts


def _judge_sampled(logits: Tensor, cases: Sequence[Case]) -> list[tuple[int, int]]:
    lengths = [len(case.draft_ids) for case in cases]
    laws = [case.law for case, length in zip(cases, lengths, strict=True) for _ in range(length + 1)]
    probs = distribution(_owned_rows(logits, cases), LawColumns.of(laws, logits.device))
    slots = _Slots.of(
        [case.draft_ids for case in cases],
        [np.frombuffer(case.q.ids, "<u4") for case in cases],
        [np.frombuffer(case.q.probs, "<f4") for case in cases],
        [case.q.entries for case in cases],
    )
    names = [
        (case.law.seed, case.law.choice, int(case.law.rule), case.cursor.epoch, case.cursor.anchor_position)
        for case in cases
    ]
    columns = np.array(names, np.uint64)

    def noise(purpose: Purpose, case: Ints, slots: Ints) -> Floats:
        seed, choice, rule, epoch, position = columns[case].T
        return uniforms(seed, choice, rule, purpose, epoch, position, slots)

    accept_u = noise(Purpose.ACCEPT, np.repeat(np.arange(len(cases)), lengths), slots.within)
    first_rows = (np.cumsum(lengths) - lengths + np.arange(len(cases))).tolist()
    return _decide(
        probs, first_rows, slots, accept_u, lambda kept: noise(Purpose.EMIT, np.arange(len(cases)), np.array(kept) + 1)
    )


def _owned_rows(logits: Tensor, cases: Sequence[Case]) -> Tensor:
    """The rows of these cases, one case after another."""
    rows = [row for case in cases for row in range(case.first_row, case.first_row + len(case.draft_ids) + 1)]
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return logits[rows[0] : rows[0] + len(rows)]
    return logits[torch.tensor(rows, device=logits.device)]


@dataclass(frozen=True, slots=True)
class _Slots:
    """The drafted tokens of several sequences and their sparse distributions, flattened: S slots, N entries."""

    lengths: list[int]  # slots of each sequence
    within: Ints  # [S] slot number inside its sequence, from 1
    drafted: Ints  # [S]
    slot: Ints  # [N] slot of an entry, ascending
    ids: Ints  # [N]
    probs: Floats  # [N], divided by the float64 sum of their slot

    @staticmethod
    def of(
        drafts: Sequence[Sequence[int]],
        ids: Sequence[npt.NDArray[np.integer]],
        probs: Sequence[npt.NDArray[np.floating]],
        entries: Sequence[int],
    ) -> _Slots:
        lengths = [len(draft) for draft in drafts]
        total = sum(lengths)
        slot = np.repeat(np.arange(total), np.repeat(np.array(entries, np.int64), lengths))
        weights = np.concatenate(probs).astype(np.float64)
        return _Slots(
            lengths=lengths,
            within=np.concatenate([np.arange(1, length + 1) for length in lengths]),
            drafted=np.array([token for draft in drafts for token in draft], np.int64),
            slot=slot,
            ids=np.concatenate(ids).astype(np.int64),
            probs=weights / np.bincount(slot, weights, minlength=total)[slot],
        )

    def of_drafted(self) -> Floats:
        """q of the drafted tokens: [S]."""
        own = np.where(self.ids == self.drafted[self.slot], self.probs, 0.0)
        q: Floats = np.bincount(self.slot, own, minlength=len(self.drafted)).astype(np.float64)
        return q

    def dense(self, chosen: Sequence[int | None], like: Tensor) -> Tensor:
        """q of one slot per row, or zeros for None: shape and device of `like` [m, V]."""
        row_of = np.full(len(self.drafted), -1)
        for row, slot in enumerate(chosen):
            if slot is not None:
                row_of[slot] = row
        rows = row_of[self.slot]
        wanted = rows >= 0
        q = torch.zeros_like(like)
        where = (torch.from_numpy(rows[wanted]).to(q.device), torch.from_numpy(self.ids[wanted]).to(q.device))
        return q.index_put_(where, torch.from_numpy(self.probs[wanted]).to(q.device))


def _decide(
    probs: Tensor,  # [R, V] float64
    first_rows: Sequence[int],  # row of each sequence's anchor
    slots: _Slots,
    accept_u: Floats,  # [S]
    emit_u: Callable[[list[int]], Floats],  # accepted counts [n] -> draws [n]
) -> list[tuple[int, int]]:
    """The token rule on several sequences at once."""
    row_of_slot = np.repeat(np.array(first_rows), slots.lengths) + slots.within - 1
    index = (torch.from_numpy(row_of_slot).to(probs.device), torch.from_numpy(slots.drafted).to(probs.device))
    p, q = probs[index].cpu().numpy(), slots.of_drafted()
    if not np.isfinite(p).all():
        raise FloatingPointError("target probabilities are not numbers")
    kept = (accept_u < accept_probability(p, q)).tolist()
    # A token that its q cannot produce was never drawn from it: its slot counts as not sent, which keeps the law
    # and keeps tokens of probability zero out, instead of accepting whatever arrived.
    sent = (q > 0).tolist()
    accepted: list[int] = []
    rejected: list[int | None] = []
    start = 0
    for length in slots.lengths:
        slot = start
        while slot < start + length and sent[slot] and kept[slot]:
            slot += 1
        accepted.append(slot - start)
        rejected.append(slot if slot < start + length and sent[slot] else None)
        start += length
    last = probs[[first + count for first, count in zip(first_rows, accepted, strict=True)]]
    law = residual(last, slots.dense(rejected, last))
    tokens = draw(law, torch.from_numpy(emit_u(accepted)).to(probs.device))
    return list(zip(accepted, tokens.tolist(), strict=True))
