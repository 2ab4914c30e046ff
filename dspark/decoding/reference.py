"""The whole algorithm in one process, on one page: the oracle every distributed run is compared
with.

`generate` decodes with a given target, drafter and schedule; `replay` repeats a recorded run from
its blocks and prefix lengths. Invariant 7: with the same parameters, a system that made the
recorded choices must commit these tokens. Every decision is made by `sampling`, `acceptance` and
the keys of `philox`; nothing else is random. The rules are those of `paper`, slot by slot and with
dense q; the deployed ones are packed and sparse.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dspark.decoding import paper
from dspark.decoding.acceptance import first_token
from dspark.decoding.gumbel import checked_argmax, exponentials_of
from dspark.decoding.philox import Purpose, uniforms
from dspark.decoding.sampling import (
    SamplingColumns,
    distribution,
    draft_distribution,
    draw,
    draw_sparse,
)
from dspark.decoding.shaping import Shaper, shaped, shaped_last
from dspark.types import NO_Q, Cursor, Rule, SamplingParams, SparseQ

# (tokens, rows) -> logits [rows, V] after each of the last `rows`
Target = Callable[[Sequence[int], int], Tensor]
Pick = Callable[[Tensor], int]  # logits [V] of the next slot -> the token drafted there
# (tokens, anchor last; pick) -> confidence of every slot picked
Drafter = Callable[[Sequence[int], Pick], Sequence[float]]
Schedule = Callable[[int, Sequence[float]], int]  # (anchor position, confidences) -> prefix


@dataclass(frozen=True, slots=True)
class RecordedRound:
    """One recorded round: its choices (anchor, block, prefix) and its outcome."""

    anchor_position: int
    draft_ids: tuple[int, ...]
    q: SparseQ
    prefix: int
    accepted: int
    next_token: int
    epoch: int = 1
    # a hand-over: the sequence was prefilled anew, which added `next_token`
    prefilled: bool = False


@dataclass(frozen=True, slots=True)
class ReferenceRun:
    """The answer, without the prompt, and its rounds; the prefill's token has no round."""

    token_ids: tuple[int, ...]
    rounds: tuple[RecordedRound, ...]


def generate(
    prompt: Sequence[int],
    target: Target,
    drafter: Drafter,
    schedule: Schedule,
    params: SamplingParams,
    *,
    max_tokens: int,
    stop_ids: Collection[int] = (),
    entries: int = 64,
    epoch: int = 1,
) -> ReferenceRun:
    """Decodes until a stop token or `max_tokens`, recording every round."""
    params = replace(params, prompt_len=len(prompt))
    tokens, rounds = list(prompt), list[RecordedRound]()
    tokens.append(_first(tokens, target, params, epoch))
    while len(tokens) < len(prompt) + max_tokens and not _stopped(tokens[len(prompt) :], stop_ids):
        anchor = len(tokens) - 1
        draft_ids, q, confidence = _draft(tokens, drafter, params, entries, epoch)
        prefix = min(schedule(anchor, confidence), len(draft_ids))
        accepted, token = _verify(
            tokens, draft_ids[:prefix], q.prefix(prefix), target, params, epoch
        )
        rounds.append(RecordedRound(anchor, draft_ids, q, prefix, accepted, token, epoch))
        tokens += [*draft_ids[:accepted], token]
    return ReferenceRun(_cut(tokens[len(prompt) :], max_tokens, stop_ids), tuple(rounds))


def replay(
    prompt: Sequence[int],
    target: Target,
    rounds: Sequence[RecordedRound],
    params: SamplingParams,
    *,
    max_tokens: int,
    stop_ids: Collection[int] = (),
    epoch: int = 1,
) -> tuple[int, ...]:
    """The answer that the recorded choices lead to; `accepted` and `next_token` of the records are
    not read."""
    params = replace(params, prompt_len=len(prompt))
    tokens = list(prompt)
    tokens.append(_first(tokens, target, params, epoch))
    for made in rounds:
        if made.anchor_position != len(tokens) - 1:
            raise ValueError(
                f"a round was recorded at {made.anchor_position}, the replay stands at "
                f"{len(tokens) - 1}"
            )
        if made.prefilled:
            tokens.append(_first(tokens, target, params, made.epoch))
            continue
        prefix = made.draft_ids[: made.prefix]
        accepted, token = _verify(
            tokens, prefix, made.q.prefix(made.prefix), target, params, made.epoch
        )
        tokens += [*prefix[:accepted], token]
    return _cut(tokens[len(prompt) :], max_tokens, stop_ids)


def _first(tokens: Sequence[int], target: Target, params: SamplingParams, epoch: int) -> int:
    """The token that a prefill of `tokens` adds."""
    return first_token(
        target(tokens, 1)[0], params, Cursor(0, epoch, 0, len(tokens)), Shaper.of(params, tokens)
    )


def _draft(
    tokens: Sequence[int], drafter: Drafter, params: SamplingParams, entries: int, epoch: int
) -> tuple[tuple[int, ...], SparseQ, Sequence[float]]:
    """A block: the tokens picked slot by slot, their distributions, and the drafter's
    confidences."""
    picked: list[int] = []
    ids_of: list[Tensor] = []
    probs_of: list[Tensor] = []

    shaper = Shaper.of(params, tokens)

    def pick(logits: Tensor) -> int:
        row = shaped_last(logits.unsqueeze(0), [(picked, shaper)])
        ids, probs = draft_distribution(row, SamplingColumns.of([params]), entries)
        slot = len(picked) + 1
        if params.rule is Rule.COUPLED:
            place = checked_argmax(probs, exponentials_of([params], [len(tokens) - 1 + slot], ids))[
                0
            ]
            picked.append(int(ids[0, place]))
            return picked[-1]
        u = uniforms(
            params.seed, params.choice, params.rule, Purpose.DRAFT, epoch, len(tokens) - 1, [slot]
        )
        picked.append(int(draw_sparse(ids, probs, torch.from_numpy(u))))
        ids_of.append(ids)
        probs_of.append(probs)
        return picked[-1]

    confidence = drafter(tokens, pick)
    q = (
        SparseQ.of(torch.cat(ids_of).numpy().astype(np.uint32), torch.cat(probs_of).numpy())
        if ids_of
        else NO_Q
    )
    return tuple(picked), q, confidence


def _verify(
    tokens: Sequence[int],
    prefix: Sequence[int],
    q: SparseQ,
    target: Target,
    params: SamplingParams,
    epoch: int,
) -> tuple[int, int]:
    """(accepted, next token): one target pass over the anchor and the prefix, then the request's
    rule."""
    logits = target([*tokens, *prefix], len(prefix) + 1)
    p = distribution(
        shaped(logits, [(0, prefix, Shaper.of(params, tokens))]), SamplingColumns.of([params])
    )
    if params.rule is Rule.COUPLED and not params.greedy:
        return paper.coupled(p, prefix, params, len(tokens))

    def coin(purpose: Purpose, slot: int) -> float:
        return uniforms(
            params.seed, params.choice, params.rule, purpose, epoch, len(tokens) - 1, [slot]
        ).item()

    if params.rule is Rule.COUPLED:  # greedy: q is one-hot, as nothing was drawn
        drawn_from = torch.nn.functional.one_hot(
            torch.tensor(prefix, dtype=torch.int64), p.shape[-1]
        ).double()
    else:
        drawn_from = paper.dense(q, len(prefix), p.shape[-1])
    rule = paper.block if params.rule is Rule.BLOCK else paper.token
    accepted, after = rule(p, drawn_from, prefix, lambda slot: coin(Purpose.ACCEPT, slot))
    u = torch.tensor([coin(Purpose.EMIT, accepted + 1)], dtype=torch.float64)
    return accepted, int(draw(after.unsqueeze(0), u))


def _stopped(answer: Sequence[int], stop_ids: Collection[int]) -> bool:
    return any(token in stop_ids for token in answer)


def _cut(answer: Sequence[int], max_tokens: int, stop_ids: Collection[int]) -> tuple[int, ...]:
    """The answer cut to `max_tokens` and behind its first stop token."""
    ends = [place + 1 for place, token in enumerate(answer) if token in stop_ids]
    return tuple(answer[: min([max_tokens, *ends])])
