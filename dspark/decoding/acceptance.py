"""The lossless accept-or-correct rule, once: sampled by the verifier, enumerated by the tests.

Token rule: keep the drafted token x of a slot with probability min(1, p(x) / q(x)); at the first one not kept the
target adds a token from norm(max(p - q, 0)), after all kept ones from p. Exact for any q, provided it is the q that x
was drawn from and that sending the slot did not depend on x. Everything is float64. At temperature 0 this is greedy
matching whatever q says. Noise is passed in, or keyed by `philox` (invariant 4).

Symbols: l drafted tokens of one sequence, which owns l + 1 rows of a packed pass; K entries of a sparse q.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.decoding.philox import Purpose, uniforms
from dspark.decoding.sampling import LawColumns, best, distribution, draw
from dspark.decoding.shaping import Shaper, shaped
from dspark.decoding.slots import Slots
from dspark.decoding.sparse_q import validate_q as validate_q
from dspark.errors import Unsupported
from dspark.types import Cursor, Law, Rule, SparseQ

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

PIECE = 1 << 16  # probabilities a CPU works on at a time


@dataclass(frozen=True, slots=True)
class Case:
    """One sequence of a packed pass, `validate_q` passed: its rows start at `first_row`, the anchor's."""

    cursor: Cursor
    law: Law
    first_row: int
    draft_ids: Sequence[int]
    q: SparseQ
    shaper: Shaper | None = None  # where the law shapes logits: has counted all committed tokens


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
    ids, probs = q
    slots = Slots.of([draft_ids], [ids.ravel()], [probs.ravel()], [ids.shape[1]])
    p = target_probs[torch.arange(len(draft_ids)), torch.tensor(draft_ids, dtype=torch.int64)].numpy()
    kept, rejected = _leading_run(p, slots, np.asarray(accept_u, np.float64).reshape(len(draft_ids)))
    return kept[0], _emit(target_probs[kept], slots, rejected, np.array([emit_u]))[0]


def judge(logits: Tensor, cases: Sequence[Case]) -> list[tuple[int, int]]:
    """(accepted, next token) of every sequence of a packed pass: logits [T, V] of any float dtype.

    Raises FloatingPointError when the logits of any case are not numbers.
    """
    for case in cases:
        if case.law.rule is not Rule.TOKEN:
            raise Unsupported("rule", f"the {case.law.rule.name.lower()} rule is not supported yet")
    logits = shaped(logits, ((case.first_row, case.draft_ids, case.shaper) for case in cases))
    verdicts: list[tuple[int, int]] = [(0, 0)] * len(cases)
    for greedy, rule in ((True, _judge_greedy), (False, _judge_sampled)):
        chosen = [index for index, case in enumerate(cases) if case.law.greedy is greedy]
        if chosen:
            for index, verdict in zip(chosen, rule(logits, [cases[i] for i in chosen]), strict=True):
                verdicts[index] = verdict
    return verdicts


def first_token(logits: Tensor, law: Law, cursor: Cursor, shaper: Shaper | None = None) -> int:
    """The token a prefill adds: logits [V] of its last position; cursor.committed_len counts the tokens it ran."""
    rows = shaped(logits.unsqueeze(0), [(0, (), shaper)])
    if law.greedy:
        return int(best(rows))
    probs = distribution(rows, LawColumns.of([law], logits.device))
    u = uniforms(law.seed, law.choice, law.rule, Purpose.EMIT, cursor.epoch, cursor.anchor_position, [0])
    return int(draw(probs, torch.from_numpy(u).to(probs.device)))


def _judge_greedy(logits: Tensor, cases: Sequence[Case]) -> list[tuple[int, int]]:
    """Greedy matching: no softmax, and q does not matter."""
    rows = [case.first_row + slot for case in cases for slot in range(len(case.draft_ids) + 1)]
    top = best(_take(logits, rows)).tolist()
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
    slots = Slots.of(
        [case.draft_ids for case in cases],
        [np.frombuffer(case.q.ids, "<u4") for case in cases],
        [np.frombuffer(case.q.probs, "<f4") for case in cases],
        [case.q.entries for case in cases],
    )
    rows = [case.first_row + slot for case in cases for slot in range(len(case.draft_ids))]
    laws = [case.law for case in cases for _ in case.draft_ids]
    p = _probability_of(slots.drafted, logits, rows, laws)
    kept, rejected = _leading_run(p, slots, _noise(Purpose.ACCEPT, cases, lengths, slots.within))
    ends = [case.first_row + count for case, count in zip(cases, kept, strict=True)]
    last = distribution(_take(logits, ends), LawColumns.of([case.law for case in cases], logits.device))
    tokens = _emit(last, slots, rejected, _noise(Purpose.EMIT, cases, [1] * len(cases), np.array(kept) + 1))
    return list(zip(kept, tokens, strict=True))


def _probability_of(drafted: Ints, logits: Tensor, rows: Sequence[int], laws: Sequence[Law]) -> Floats:
    """Target probability of one token per row: [S]. In pieces, so that a CPU's cache holds what is worked on."""
    step = max(PIECE // logits.shape[-1], 1) if logits.device.type == "cpu" else max(len(rows), 1)
    pieces = [np.zeros(0)]
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        probs = distribution(_take(logits, rows[part]), LawColumns.of(laws[part], logits.device))
        ids = torch.from_numpy(drafted[part]).to(probs.device)
        pieces.append(probs.gather(-1, ids.unsqueeze(-1)).squeeze(-1).cpu().numpy())
    return np.concatenate(pieces)


def _noise(purpose: Purpose, cases: Sequence[Case], counts: Sequence[int], slots: Ints) -> Floats:
    """Draws for the next `counts` of `slots`, case after case."""
    names = [
        (case.law.seed, case.law.choice, int(case.law.rule), case.cursor.epoch, case.cursor.anchor_position)
        for case in cases
    ]
    if len(names) == 1:
        seed, choice, rule, epoch, position = names[0]
        return uniforms(seed, choice, rule, purpose, epoch, position, slots)
    seed, choice, rule, epoch, position = np.array(names, np.uint64).repeat(counts, axis=0).T
    return uniforms(seed, choice, rule, purpose, epoch, position, slots)


def _take(logits: Tensor, rows: Sequence[int]) -> Tensor:
    """These rows, without a copy where they follow each other."""
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return logits[rows[0] : rows[0] + len(rows)]
    return logits[torch.tensor(rows, device=logits.device)]


def _leading_run(p: Floats, slots: Slots, accept_u: Floats) -> tuple[list[int], list[int | None]]:
    """Per sequence: how many slots are kept, and the slot that was not (None if none was). p, accept_u [S]."""
    if not np.isfinite(p).all():
        raise FloatingPointError("target probabilities are not numbers")
    q = slots.of_drafted()
    kept = (accept_u < accept_probability(p, q)).tolist()
    # A token that its q cannot produce was never drawn from it: its slot counts as not sent, which keeps the law
    # and keeps tokens of probability zero out, instead of accepting whatever arrived.
    sent = (q > 0).tolist()
    accepted: list[int] = []
    rejected: list[int | None] = []
    start = 0
    for length in slots.lengths:
        slot, end = start, start + length
        while slot < end and sent[slot] and kept[slot]:
            slot += 1
        accepted.append(slot - start)
        rejected.append(slot if slot < end and sent[slot] else None)
        start = end
    return accepted, rejected


def _emit(last: Tensor, slots: Slots, rejected: Sequence[int | None], emit_u: Floats) -> list[int]:
    """The token the target adds to each sequence, from the row [m, V] where its run ended."""
    law = residual(last, slots.dense(rejected, last))
    ids: list[int] = draw(law, torch.from_numpy(emit_u).to(last.device)).tolist()
    return ids
