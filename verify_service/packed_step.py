"""One packed pass: the prefixes of a cohort, and perhaps chunks of prompts behind them; then rule and projection.

Everybody in it has been checked and has pages. Invariant 3, q sent is q sampled: the rule gets q as it came.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor

from dspark.decoding.acceptance import DrawsWatch, PackedCase
from dspark.decoding.draws import Labels
from dspark.decoding.logprobs import prompt_logprobs
from dspark.decoding.masking import Masks, mask
from dspark.types import Draws, Refusal, TokenLogprobs, Verdict
from verify_service.feature_store import FeatureRows
from verify_service.holdings import Holdings
from verify_service.judging import Sampler, masks_of, shaper_of, told
from verify_service.passes import Pass, Runner
from verify_service.plan import Segment
from verify_service.sequences import SequenceState, VerifyItem, failed

# Cohorts of so many sequences are watched in one round of so many: they bring draws enough, and the device waits for
# it. Which rounds those are depends on nothing that was drafted.
MANY, EVERY = 32, 4


class Chunk(NamedTuple):
    """The next tokens of a prompt."""

    state: SequenceState
    token_ids: Sequence[int]
    wants_rows: bool
    next_ids: Sequence[int] = ()  # where the prompt is scored: the token behind each of them, but the prompt's last


class _Committed(NamedTuple):
    """Rows of the pass that belong to committed tokens of one sequence."""

    state: SequenceState
    start: int  # first position
    token_ids: list[int]
    row: int  # first row of the pass
    awaited: bool  # somebody waits for its feature rows; else they are kept


class PassFailed(Exception):
    """The target did not run, for the reason that caused this. Nothing was committed: the same may be run again."""


class Stepped(NamedTuple):
    """What became of each item, the rows that were committed, and those of each chunk."""

    outcomes: list[Verdict | Refusal]
    features: list[FeatureRows | None]
    chunk_rows: list[FeatureRows | None]
    tokens: int  # of the items


class PackedStep:
    """How one engine runs passes."""

    def __init__(self, runner: Runner, holdings: Holdings, sampler: Sampler) -> None:
        self._runner, self._holdings, self._sampler = runner, holdings, sampler
        self._near_ties: Counter[int] = Counter()
        self._watch = DrawsWatch(secrets.randbits(128))  # its noise is a secret of this process
        self._rounds = 0

    def take_near_ties(self) -> int:
        """Near-ties of coupled sequences since the last call."""
        count, self._near_ties = self._near_ties.total(), Counter()
        return count

    def take_draws(self, items: Sequence[VerifyItem]) -> tuple[dict[int, Labels], list[Draws]]:
        """What the rule saw since the last call: labels by sequence, and sums by the drafters of these items."""
        labels = self._watch.labels()
        return labels, self._watch.sums({item.cursor.sequence: item.drafter for item in items}) if labels else []

    def run(self, items: Sequence[VerifyItem], chunks: Sequence[Chunk] = ()) -> Stepped:
        """Runs, judges, commits. Chunks are of different prompts."""
        if not items and not chunks:
            return Stepped([], [], [], 0)
        try:
            return self._run(items, chunks)
        except BaseException:  # nobody knows what lies in their pages now, so nobody else shall find them
            for state in [self._holdings.states[item.cursor.sequence] for item in items]:
                state.salt = None
            for chunk in chunks:
                chunk.state.salt = None
            raise

    def _run(self, items: Sequence[VerifyItem], chunks: Sequence[Chunk]) -> Stepped:
        holdings = self._holdings
        segments: list[Segment] = []
        cases: list[PackedCase] = []
        row = 0
        for item in items:
            state = holdings.states[item.cursor.sequence]
            ids = [item.anchor, *item.draft_ids]
            slots = holdings.slots(state, 0, state.cached + len(ids))
            segments.append(Segment(state.sequence, state.cached, ids, slots, state.given))
            cases.append(PackedCase(item.cursor, state.law, row, item.draft_ids, item.q, shaper_of(state)))
            row += len(ids)
        tokens, logit_rows = row, list(range(row))
        for chunk in chunks:
            state, stop = chunk.state, chunk.state.cached + len(chunk.token_ids)
            slots = holdings.slots(state, 0, stop)
            segments.append(Segment(state.sequence, state.cached, chunk.token_ids, slots, state.given))
            logit_rows += range(row, row + len(chunk.next_ids))
            row += len(chunk.token_ids)
            if stop == state.prompt_len:  # only the last token of a prompt is followed by a draw
                logit_rows.append(row - 1)
        try:
            result = self._runner.run(segments, logit_rows if chunks else None)
        except Exception as error:
            raise PassFailed(f"{len(items)} sequences, {len(chunks)} prompts, {row} tokens: {error}") from error
        outcomes, committed = self._judge(items, cases, result) if items else ([], [])
        committed += self._take_in(chunks, result, tokens)
        rows = self._features(committed, result.taps)
        for chunk in chunks:
            if chunk.state.cached == chunk.state.prompt_len:  # rows and all are there
                holdings.keep_prefix(chunk.state)
        return Stepped(outcomes, rows[: len(items)], rows[len(items) :], tokens)

    def _judge(
        self, items: Sequence[VerifyItem], cases: list[PackedCase], result: Pass
    ) -> tuple[list[Verdict | Refusal], list[_Committed | None]]:
        outcomes: list[Verdict | Refusal] = []
        wanted: list[_Committed | None] = []
        self._rounds += 1
        due = len(items) < MANY or self._rounds % EVERY == 0
        masks = [masks_of(self._holdings.states[item.cursor.sequence], item) for item in items]
        mask(result.logits, [(case.first_row, each) for case, each in zip(cases, masks, strict=True) if _is_mask(each)])
        decisions = self._sampler(result.logits, cases, self._near_ties, self._watch if due else None)
        for item, case, refused, decided in zip(items, cases, masks, decisions, strict=True):
            state = self._holdings.states[item.cursor.sequence]
            decided = refused if isinstance(refused, Refusal) else decided
            complete = _complete(state, result.logits[case.first_row :], item.draft_ids, decided)
            if isinstance(complete, Refusal):
                outcomes.append(complete)
                wanted.append(None)
                continue
            accepted, next_token, logprobs = complete
            start, kept = state.cached, [item.anchor, *item.draft_ids[:accepted]]
            state.token_ids.extend(item.draft_ids[:accepted])
            state.token_ids.append(next_token)
            state.cached += len(kept)
            through = state.cached if self._holdings.store is not None else 0
            state.last = Verdict(item.cursor, accepted, next_token, through, len(item.draft_ids), logprobs)
            outcomes.append(state.last)
            wanted.append(_committed(state, start, kept, case.first_row, item.wants_rows))
        return outcomes, wanted

    def _take_in(self, chunks: Sequence[Chunk], result: Pass, row: int) -> list[_Committed | None]:
        """`row`: tokens of the items, which come first in the pass and in its logits."""
        wanted: list[_Committed | None] = []
        last = row  # where the next logits of a prompt lie
        for chunk in chunks:
            state, start = chunk.state, chunk.state.cached
            state.cached += len(chunk.token_ids)
            state.token_ids.extend(chunk.token_ids)
            if chunk.next_ids:
                _score(state, result.logits[last : last + len(chunk.next_ids)], chunk.next_ids)
                last += len(chunk.next_ids)
            if state.cached == state.prompt_len:
                self._holdings.last_logits[state.sequence] = result.logits[last]
                last += 1
            wanted.append(_committed(state, start, list(chunk.token_ids), row, chunk.wants_rows))
            row += len(chunk.token_ids)
        return wanted

    def _features(self, committed: Sequence[_Committed | None], taps: Tensor | None) -> list[FeatureRows | None]:
        """Rows of those that are awaited; those of the others are kept for later."""
        made: list[FeatureRows | None] = [None] * len(committed)
        store = self._holdings.store
        if store is None:
            return made
        if later := [each for each in committed if each is not None and not each.awaited]:
            store.put_later(self._holdings.where([_run(each) for each in later]), _picked(taps, later))
        now = [(at, each) for at, each in enumerate(committed) if each is not None and each.awaited]
        if not now:
            return made
        counts = [len(each.token_ids) for _, each in now]
        rows = torch.split(store.project(_picked(taps, [each for _, each in now]), sum(counts)), counts)
        kept = [(each, own) for (_, each), own in zip(now, rows, strict=True) if each.state.keep_features]
        if kept:  # in one go: a cohort has a row or two of each
            store.put(self._holdings.where([_run(each) for each, _ in kept]), torch.cat([own for _, own in kept]))
        for (at, each), own in zip(now, rows, strict=True):
            state = each.state
            made[at] = FeatureRows(state.sequence, state.epoch, each.start, each.token_ids, own, store.form)
        return made


def _score(state: SequenceState, logits: Tensor, next_ids: Sequence[int]) -> None:
    """Log-probabilities of a part of a prompt. What goes wrong here is told when the prompt is in."""
    try:
        state.scored.append(prompt_logprobs(logits, next_ids, state.scores or 0))
    except Exception as error:
        state.broken = failed(state.sequence, error)


def _complete(
    state: SequenceState, logits: Tensor, draft_ids: Sequence[int], decided: tuple[int, int] | Refusal
) -> tuple[int, int, tuple[TokenLogprobs, ...]] | Refusal:
    """A decision and what is told of its tokens, before anything of it is committed; its matcher goes on to them."""
    if isinstance(decided, Refusal):
        return decided
    accepted, next_token = decided
    tokens = [*draft_ids[:accepted], next_token]
    try:
        logprobs = told(state.law, logits, tokens)
        if state.matcher is not None:
            state.matcher.accept(tokens)
        return accepted, next_token, logprobs
    except Exception as error:
        return failed(state.sequence, error)


def _is_mask(made: Masks | Refusal | None) -> TypeGuard[Masks]:
    return isinstance(made, np.ndarray)


def _committed(state: SequenceState, start: int, ids: list[int], row: int, awaited: bool) -> _Committed | None:
    """None where nobody wants rows, now or later: plain decoding pays for no projection."""
    return _Committed(state, start, ids, row, awaited) if awaited or state.keep_features else None


def _run(each: _Committed) -> tuple[SequenceState, int, int]:
    return each.state, each.start, len(each.token_ids)


def _picked(taps: Tensor | None, committed: Sequence[_Committed]) -> Tensor | None:
    """Their rows of taps [T, m*H], in their order; None without taps."""
    if taps is None:
        return None
    ends = [each.row + len(each.token_ids) for each in committed]
    if all(each.row == end for each, end in zip(committed[1:], ends[:-1], strict=True)):  # in a plain round they are
        return taps[committed[0].row : ends[-1]]
    index = [each.row + j for each in committed for j in range(len(each.token_ids))]
    return taps.index_select(0, torch.tensor(index, device=taps.device))
