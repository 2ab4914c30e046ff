"""Penalties, biases and minimum length of a request, applied to the target's logits before
temperature and truncation.

For one row, in this order, which is vLLM's: ids that end the answer are excluded while it has fewer
than `min_tokens` tokens, unless its form allows nothing else; `logit_bias` is added; logits of
tokens in the prompt or the answer are divided by `repetition_penalty` where positive and multiplied
by it where not; `frequency_penalty` times the token's count in the answer and, where that is not 0,
`presence_penalty` are subtracted. The row of slot k is that of a history which includes the drafted
tokens before slot k, so the distribution of what is emitted is that of plain decoding.

Parameters without any of these cost nothing: their sequences have no `Shaper`. Knows nothing of
services or rules. Symbols: l drafted tokens of one sequence, which owns l + 1 rows; c columns, the
ids that may change; V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.decoding.moving import sent
from dspark.types import SamplingParams

Floats = npt.NDArray[np.float32]
FIRST_COLUMNS = 64


class LogitChanges(NamedTuple):
    """Changes to r rows at c ids: logit + bias, divided by the factor if positive, else multiplied
    by it, minus `minus`."""

    ids: npt.NDArray[np.int64]  # [c], distinct
    bias: Floats  # [r, c]; minus infinity excludes
    factor: Floats  # [r, c]; 1 changes nothing
    minus: Floats  # [r, c]


class Shaper:
    """The tokens of one sequence as its penalties count them; grows with it. For one thread at a
    time."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self._ends = params.stop_token_ids if params.min_tokens else ()
        self._counts_tokens = params.penalises
        self._start_over()

    @staticmethod
    def of(params: SamplingParams, tokens: Sequence[int]) -> Shaper | None:
        """A shaper that counted `tokens`, the prompt included; None for parameters that change no
        logits."""
        return Shaper(params).follow(tokens) if params.shapes else None

    def follow(self, tokens: Sequence[int]) -> Shaper:
        """Counts the new tokens of a sequence; a shorter sequence is another one and resets the
        counts."""
        if len(tokens) < self.length:
            self._start_over()
        return self.extend(tokens[self.length :])

    def extend(self, tokens: Sequence[int] | npt.NDArray[np.int64]) -> Shaper:
        """Counts the next tokens."""
        if self._counts_tokens and len(tokens):
            ids, place = np.unique(np.asarray(tokens, np.int64), return_inverse=True)
            columns = np.array([self._column_of(token) for token in ids.tolist()])
            answered = self.length + np.arange(len(tokens)) >= self.params.prompt_len
            self._seen[columns] = True
            self._count[columns] += np.bincount(place, answered).astype(np.int64)
        self.length += len(tokens)
        return self

    def changes(self, drafted: Sequence[int] = (), first: int = 0) -> LogitChanges:
        """The changes of rows `first` .. l behind the counted tokens; row k includes the first k
        drafted ones."""
        params, rows, known = self.params, len(drafted) + 1, len(self._column)
        answered = self.length - params.prompt_len
        drafts = [self._column_of(token) for token in drafted] if self._counts_tokens else []
        at_work = self._counts_tokens or params.logit_bias or answered + first < params.min_tokens
        width = len(self._column) if at_work else 0
        seen = np.repeat(self._seen[None, :width], rows, axis=0)
        count = np.repeat(self._count[None, :width], rows, axis=0)
        for k, column in enumerate(drafts, start=1):
            seen[k:, column] = True
            count[k:, column] += answered + k > 0
        ids = self._ids[:width].copy()
        for token in ids[known:].tolist():  # a drafted token may yet be rejected
            del self._column[token]
        bias = np.repeat(self._bias[None, :width], rows, axis=0)
        early = np.arange(rows) + answered < params.min_tokens
        bias[np.ix_(early, self._end[:width])] = -np.inf
        factor = np.where(seen, np.float32(params.repetition_penalty), np.float32(1.0))
        minus = np.float32(params.frequency_penalty) * count + np.float32(
            params.presence_penalty
        ) * (count > 0)
        return LogitChanges(ids, bias[first:], factor[first:], minus.astype(np.float32)[first:])

    def _start_over(self) -> None:
        self.length = 0  # tokens counted, the prompt included
        self._column: dict[int, int] = {}
        self._ids = np.zeros(FIRST_COLUMNS, np.int64)
        self._seen = np.zeros(FIRST_COLUMNS, np.bool_)  # in the prompt or the answer
        self._count = np.zeros(FIRST_COLUMNS, np.int64)  # in the answer
        self._bias = np.zeros(FIRST_COLUMNS, np.float32)
        self._end = np.zeros(FIRST_COLUMNS, np.bool_)
        for token, bias in self.params.logit_bias:
            column = self._column_of(token)  # first: a new column may replace the arrays
            self._bias[column] = bias
        for token in self._ends:
            column = self._column_of(token)
            self._end[column] = True

    def _column_of(self, token: int) -> int:
        """The column of an id, added if it is new, which may replace the arrays."""
        column = self._column.get(token)
        if column is None:
            column = self._column[token] = len(self._column)
            if column == len(self._ids):
                for name in ("_ids", "_seen", "_count", "_bias", "_end"):
                    grown = getattr(self, name)
                    setattr(self, name, np.concatenate([grown, np.zeros_like(grown)]))
            self._ids[column], self._seen[column], self._count[column] = token, False, 0
            self._bias[column], self._end[column] = 0.0, False
        return column


# First row of a sequence, its drafted tokens, its shaper.
Part = tuple[int, Sequence[int], Shaper | None]


def shaped(logits: Tensor, parts: Iterable[Part]) -> Tensor:
    """logits [T, V] of a packed pass with the rows of `parts` changed by their shapers; the same
    tensor if none changes.

    Otherwise a copy of at least float32: a penalty rounded to bfloat16 would be another penalty.
    """
    return _changed(
        logits,
        [(row, shaper.changes(drafted)) for row, drafted, shaper in parts if shaper is not None],
    )


def shaped_last(logits: Tensor, parts: Iterable[tuple[Sequence[int], Shaper | None]]) -> Tensor:
    """`shaped` where every sequence has one row, the one after all its drafted tokens: logits [n,
    V]."""
    changes = [
        (row, shaper.changes(drafted, first=len(drafted)))
        for row, (drafted, shaper) in enumerate(parts)
        if shaper is not None
    ]
    return _changed(logits, changes)


def params_problem(params: SamplingParams, vocab: int) -> str | None:
    """Why these parameters cannot shape rows of this vocabulary, naming the field, or None."""
    if any(not 0 <= token < vocab for token, _ in params.logit_bias):
        return f"logit_bias: an id is not below the vocabulary size {vocab}"
    if any(not 0 <= token < vocab for token in params.stop_token_ids):
        return f"stop_token_ids: an id is not below the vocabulary size {vocab}"
    if params.min_tokens and len(set(params.stop_token_ids)) >= vocab:
        return "min_tokens: every token of the vocabulary ends the answer"
    return None


def _changed(logits: Tensor, changes: Sequence[tuple[int, LogitChanges]]) -> Tensor:
    """Applies `changes`, each with its first row, to logits in one gather and one scatter."""
    if not any(len(made.ids) for _, made in changes):
        return logits
    vocab = logits.shape[-1]
    dtype = torch.promote_types(logits.dtype, torch.float32)
    out = logits.to(dtype, copy=True, memory_format=torch.contiguous_format)
    places = [
        ((row + np.arange(len(made.bias)))[:, None] * vocab + made.ids).ravel()
        for row, made in changes
    ]
    index = sent(np.concatenate(places), out.device)
    bias, factor, minus = (
        sent(np.concatenate([made[part].ravel() for _, made in changes]), out.device)
        for part in (1, 2, 3)
    )
    flat = out.view(-1)
    raw = flat[index]
    flat[index] = _shaped(raw, bias, factor, minus).to(dtype)
    if any(np.isneginf(made.bias).any() for _, made in changes):
        # where all else is excluded, ends are allowed
        nothing = torch.isneginf(out.amax(dim=-1))[index // vocab]
        ends = _shaped(raw, bias.masked_fill(torch.isneginf(bias), 0.0), factor, minus).to(dtype)
        flat[index] = torch.where(nothing, ends, flat[index])
    return out


def _shaped(values: Tensor, bias: Tensor, factor: Tensor, minus: Tensor) -> Tensor:
    values = values + bias
    values = torch.where(values > 0, values / factor, values * factor) - minus
    return values.clamp_(max=torch.finfo(values.dtype).max)  # a penalty near 0 gives no infinity
