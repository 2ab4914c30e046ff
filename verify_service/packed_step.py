"""One packed pass over the prefixes of a cohort and prompt chunks behind them, then rule and
projection.

All items are checked and have pages before. The step has three parts, so that one pass can be
prepared while another runs: `prepare` and `commit` run on the thread that owns sequences and pages;
`execute` works on tensors alone and changes no sequence. Invariant 3, q sent is q sampled: the rule
gets q as it was received.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, TypeGuard

import numpy as np
import structlog
import torch
from torch import Tensor

from dspark.decoding.acceptance import DrawsWatch, PackedCase
from dspark.decoding.logprobs import prompt_logprobs
from dspark.decoding.masking import Masks, in_form, mask
from dspark.types import NO_Q, InForm, Refusal, RefusalReason, ScoredPrompt, ScoredToken, Verdict
from verify_service.batch_runner import PromptChunk, RuleSaw
from verify_service.drafts import unsound
from verify_service.feature_store import PART, FeatureStore
from verify_service.judging import Sampler, masks_of, shaper_of, told
from verify_service.kv_cache_manager import KVCacheManager
from verify_service.model_runner import Pass, Runner
from verify_service.plan import Segment
from verify_service.sequences import CachedSequence, VerifyItem, failed

# Cohorts of MANY or more sequences are watched in one of EVERY rounds only: these give enough
# draws, and the device waits for it. The choice of rounds depends on no drafted token.
MANY, EVERY = 32, 4

log = structlog.get_logger("dspark.verify")


# number of accepted drafted tokens, the next token, log-probabilities
_Complete = tuple[int, int, tuple[ScoredToken, ...]] | Refusal


class _Committed(NamedTuple):
    """Rows of the pass for the committed tokens of one sequence."""

    state: CachedSequence
    start: int  # first position
    token_ids: list[int]
    row: int  # first row of the pass


class Prepared(NamedTuple):
    """Inputs of one pass, unchanged until the pass has ended."""

    items: Sequence[VerifyItem]
    chunks: Sequence[PromptChunk]
    states: list[CachedSequence]  # of the items
    segments: list[Segment]
    cases: list[PackedCase]
    masks: list[Masks | Refusal | None]  # allowed tokens, per item
    tokens: int  # of the items
    logit_rows: list[int] | None  # None: all

    def without_drafts(self, places: Sequence[int]) -> Prepared:
        """The same pass with the drafts of these items removed from the rule."""
        items, cases = list(self.items), list(self.cases)
        for place in places:
            items[place] = items[place].without_draft()
            cases[place] = dataclasses.replace(cases[place], draft_ids=(), q=NO_Q)
        return self._replace(items=items, cases=cases)

    def part(self, places: Sequence[int]) -> Prepared:
        """A pass of the items at these indices. Reads no sequence: some may be gone by now."""
        cases: list[PackedCase] = []
        row = 0
        for place in places:
            cases.append(dataclasses.replace(self.cases[place], first_row=row))
            row += 1 + len(self.items[place].draft_ids)
        return Prepared(
            items=[self.items[place] for place in places],
            chunks=(),
            states=[self.states[place] for place in places],
            segments=[self.segments[place] for place in places],
            cases=cases,
            masks=[self.masks[place] for place in places],
            tokens=row,
            logit_rows=None,
        )


class Executed(NamedTuple):
    """Result of a pass before it is committed. Its tensors are its own: the next pass may run."""

    prepared: Prepared
    saw: RuleSaw
    decided: Sequence[_Complete]
    scored: Sequence[ScoredPrompt | Refusal | None]  # per chunk
    last_logits: Sequence[Tensor | None]  # per chunk; None if it does not end its prompt
    committed: Sequence[_Committed]  # whose feature rows are kept
    rows: Tensor | None  # these feature rows, or
    taps: Tensor | None  # the taps to project them from later


class PackedStep:
    """The `BatchRunner` of a real target."""

    def __init__(
        self,
        runner: Runner,
        holdings: KVCacheManager,
        sampler: Sampler,
        store: FeatureStore | None = None,
    ) -> None:
        """store: of feature rows, the same as in `holdings`."""
        self._runner, self._holdings, self._sampler, self._store = runner, holdings, sampler, store
        self._watch = DrawsWatch(secrets.randbits(128))  # its noise is a secret of this process
        self._rounds = 0
        self._ahead = runner.device.type != "cpu"

    def forget(self, state: CachedSequence) -> None:
        self._runner.release(state)

    def prepare(self, items: Sequence[VerifyItem], chunks: Sequence[PromptChunk]) -> Prepared:
        """Builds the inputs of a pass from sequences and their pages."""
        holdings = self._holdings
        states = [holdings.states[item.cursor.sequence] for item in items]
        segments: list[Segment] = []
        cases: list[PackedCase] = []
        row = 0
        for item, state in zip(items, states, strict=True):
            ids = [item.anchor, *item.draft_ids]
            slots = holdings.slots(state, 0, state.cached + len(ids))
            segments.append(Segment(state, state.cached, ids, slots, state.given))
            cases.append(
                PackedCase(item.cursor, state.params, row, item.draft_ids, item.q, shaper_of(state))
            )
            row += len(ids)
        tokens, logit_rows = row, list(range(row))
        for chunk in chunks:
            state, stop = chunk.state, chunk.state.cached + len(chunk.token_ids)
            slots = holdings.slots(state, 0, stop)
            segments.append(Segment(state, state.cached, chunk.token_ids, slots, state.given))
            logit_rows += range(row, row + len(chunk.next_ids))
            row += len(chunk.token_ids)
            if stop == state.prompt_len:  # a draw follows only the last token of a prompt
                logit_rows.append(row - 1)
        masks = [masks_of(state, item) for state, item in zip(states, items, strict=True)]
        return Prepared(
            items, chunks, states, segments, cases, masks, tokens, logit_rows if chunks else None
        )

    def execute(self, prepared: Prepared) -> Executed:
        """Runs the pass, the rule and the projection, on any thread."""
        items, chunks = prepared.items, prepared.chunks
        result = self._runner.run(prepared.segments, prepared.logit_rows)
        drafted = any(item.draft_ids for item in items)
        if bad := unsound(items, [case.params for case in prepared.cases], result.logits.shape[-1]):
            prepared = prepared.without_drafts(bad)
            items = prepared.items
        # On a GPU all tokens are projected before the rule decides which are committed: one
        # synchronization then covers verdicts and rows. On a CPU there is none to save, and a row
        # that is not committed costs its time.
        ahead, taps = None, result.taps
        reads = any(state.keep_features for state in prepared.states)
        if self._ahead and reads and self._store is not None and taps is not None:
            ahead = self._store.under_way(taps[: sum(len(s.token_ids) for s in prepared.segments)])
        near_ties: Counter[int] = Counter()
        decided = self._decide(prepared, result, near_ties) if items else []
        labels = self._watch.labels()
        draws = (
            self._watch.sums({item.cursor.sequence: item.drafter for item in items})
            if labels
            else []
        )
        saw = RuleSaw(near_ties.total(), labels, draws)
        committed = [
            _Committed(
                state, state.cached, [item.anchor, *item.draft_ids[: each[0]]], case.first_row
            )
            for state, item, case, each in zip(
                prepared.states, items, prepared.cases, decided, strict=True
            )
            if not isinstance(each, Refusal)
        ]
        scored: list[ScoredPrompt | Refusal | None] = []
        last_logits: list[Tensor | None] = []
        row = last = prepared.tokens  # of all tokens, of logits
        for chunk in chunks:
            state, count = chunk.state, len(chunk.token_ids)
            scored.append(
                _scored(state, result.logits[last : last + len(chunk.next_ids)], chunk.next_ids)
            )
            last += len(chunk.next_ids)
            ends = state.cached + count == state.prompt_len
            last_logits.append(result.logits[last].clone() if ends else None)
            last += ends
            committed.append(_Committed(state, state.cached, list(chunk.token_ids), row))
            row += count
        kept = [each for each in committed if each.state.keep_features]
        # Rows of drafted rounds are sent with the next order. Those of plain rounds may never be
        # needed, so on a CPU only their taps are kept; a long prompt's would hold others up then.
        now = drafted or self._ahead or any(chunk.state.prompt_len > PART for chunk in chunks)
        rows, owed = self._project(kept, result.taps, ahead, now=now)
        return Executed(prepared, saw, decided, scored, last_logits, kept, rows, owed)

    def _decide(self, prepared: Prepared, result: Pass, near_ties: Counter[int]) -> list[_Complete]:
        items, cases, masks = prepared.items, prepared.cases, prepared.masks
        self._rounds += 1
        due = len(items) < MANY or self._rounds % EVERY == 0
        mask(
            result.logits,
            [
                (case.first_row, each)
                for case, each in zip(cases, masks, strict=True)
                if _is_mask(each)
            ],
        )
        decisions = self._sampler(result.logits, cases, near_ties, self._watch if due else None)
        return [
            refused
            if isinstance(refused, Refusal)
            else _with_logprobs(state, result.logits[case.first_row :], item.draft_ids, decided)
            for state, item, case, refused, decided in zip(
                prepared.states, items, cases, masks, decisions, strict=True
            )
        ]

    def _project(
        self, kept: Sequence[_Committed], taps: Tensor | None, ahead: Tensor | None, *, now: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Returns (rows, None) if `now`, else (None, taps)."""
        if not kept or self._store is None:
            return None, None
        if ahead is not None:
            return torch.cat(
                [ahead[each.row : each.row + len(each.token_ids)] for each in kept]
            ), None
        picked = _picked(taps, kept)
        if now:
            return self._store.project(picked, sum(len(each.token_ids) for each in kept)), None
        return None, picked

    def commit(self, executed: Executed) -> list[Verdict | Refusal]:
        """Commits a pass to its sequences; returns each outcome. Those dropped since keep their
        pages until the pass has ended, and what is written there is of no more use."""
        holdings, prepared = self._holdings, executed.prepared
        outcomes: list[Verdict | Refusal] = []
        each = zip(prepared.states, prepared.items, executed.decided, prepared.masks, strict=True)
        for state, item, decided, masks in each:
            if isinstance(decided, Refusal):
                if decided.reason is RefusalReason.INTERNAL:
                    holdings.forget_prefix(state)
                outcomes.append(decided)
            else:
                form = in_form(masks, item.draft_ids, decided[0]) if _is_mask(masks) else InForm()
                outcomes.append(self._commit_item(state, item, *decided, form))
        for chunk, scored, logits in zip(
            prepared.chunks, executed.scored, executed.last_logits, strict=True
        ):
            _commit_chunk(chunk, scored)
            if chunk.state.broken is not None:
                holdings.forget_prefix(chunk.state)
            holdings.keep_state(chunk.state)
            if logits is not None:
                chunk.state.last_logits = logits
        try:
            self._keep(executed)
        except Exception as error:  # rows are for drafts: without them the verdicts stand
            log.error("rows.not_kept", sequences=len(executed.committed), exc_info=error)
            for kept in executed.committed:
                kept.state.keep_features, kept.state.salt = False, None
        for chunk in prepared.chunks:
            if chunk.state.prefilled:
                # after `_keep`, as prefixes share feature rows too
                holdings.keep_prefix(chunk.state)
        return outcomes

    def _commit_item(
        self,
        state: CachedSequence,
        item: VerifyItem,
        accepted: int,
        next_token: int,
        logprobs: tuple[ScoredToken, ...],
        form: InForm,
    ) -> Verdict | Refusal:
        """Advances the grammar matcher and the sequence by the committed tokens."""
        tokens = (*item.draft_ids[:accepted], next_token)
        try:
            if state.matcher is not None:
                state.matcher.accept(tokens)
        except Exception as error:
            return failed(state.sequence, error)
        state.token_ids.extend(tokens)
        state.cached += 1 + accepted
        state.round = item.cursor.round
        return Verdict(tokens, len(item.draft_ids), item.spoilt, logprobs, form)

    def _keep(self, executed: Executed) -> None:
        """Stores feature rows, or owes them, in one call: a cohort has a row or two per
        sequence."""
        rows, taps, kept = executed.rows, executed.taps, executed.committed
        if not kept or self._store is None:
            return
        slots = self._holdings.where(
            [(each.state, each.start, len(each.token_ids)) for each in kept]
        )
        if rows is not None:
            self._store.put(slots, rows)
        else:
            self._store.put_later(slots, taps)


def _commit_chunk(chunk: PromptChunk, scored: ScoredPrompt | Refusal | None) -> None:
    state = chunk.state
    state.cached += len(chunk.token_ids)
    state.token_ids.extend(chunk.token_ids)
    if isinstance(scored, Refusal):
        state.broken = scored
    elif scored is not None:
        state.scored.append(scored)


def _scored(
    state: CachedSequence, logits: Tensor, next_ids: Sequence[int]
) -> ScoredPrompt | Refusal | None:
    """Log-probabilities of a part of a prompt, or why it has none."""
    if not next_ids:
        return None
    try:
        return prompt_logprobs(logits, next_ids, state.scores or 0)
    except Exception as error:
        return failed(state.sequence, error)


def _with_logprobs(
    state: CachedSequence,
    logits: Tensor,
    draft_ids: Sequence[int],
    decided: tuple[int, int] | Refusal,
) -> _Complete:
    """Adds the log-probabilities of its tokens to a decision, before it is committed."""
    if isinstance(decided, Refusal):
        return decided
    accepted, next_token = decided
    try:
        return accepted, next_token, told(state.params, logits, [*draft_ids[:accepted], next_token])
    except Exception as error:
        return failed(state.sequence, error)


def _is_mask(made: Masks | Refusal | None) -> TypeGuard[Masks]:
    return isinstance(made, np.ndarray)


def _picked(taps: Tensor | None, committed: Sequence[_Committed]) -> Tensor | None:
    """The rows of taps [T, m*H] for committed tokens, in order; None without taps."""
    if taps is None:
        return None
    ends = [each.row + len(each.token_ids) for each in committed]
    if all(each.row == end for each, end in zip(committed[1:], ends[:-1], strict=True)):
        # contiguous, as in a plain round
        return taps[committed[0].row : ends[-1]]
    index = [each.row + j for each in committed for j in range(len(each.token_ids))]
    return taps.index_select(0, torch.tensor(index, device=taps.device))
