"""One packed pass over the prefixes of a cohort and prompt chunks behind them, then rule and
projection.

All items are checked and have pages before. The step has three parts, so that one pass can be
prepared while another runs: `inputs` and `commit` run on the thread that owns sequences and pages;
`execute` works on tensors alone and changes no sequence. Invariant 3, q sent is q sampled: the rule
gets q as it was received.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import structlog
import torch
from torch import Tensor

from dspark.decoding.acceptance import DrawsWatch, PackedCase
from dspark.decoding.logprobs import prompt_logprobs
from dspark.decoding.masking import Masks, in_form, mask
from dspark.decoding.shaping import Shaper
from dspark.types import (
    Draws,
    FormEffect,
    Refusal,
    RefusalReason,
    ScoredPrompt,
    ScoredToken,
    Verdict,
)
from verify_service.batch_runner import (
    BatchRow,
    ExecutedBatch,
    PreparedBatch,
    PromptChunk,
    RuleStatistics,
)
from verify_service.drafts import sound
from verify_service.feature_store import FeatureStore
from verify_service.kv_cache_manager import KVCacheManager
from verify_service.model_runner import Pass, Runner
from verify_service.plan import Segment
from verify_service.sampler import Sampler, masks_of, shaper_of, told
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


class _Inputs(NamedTuple):
    """What the pass and the rule take of one item."""

    segment: Segment
    shaper: Shaper | None
    masks: Masks | None  # allowed tokens


class _Made(NamedTuple):
    """What a pass made. Its tensors are its own: the next pass may run."""

    decided: Sequence[_Complete]
    # per chunk: its scores, and its last logits if it ends its prompt
    prompts: Sequence[tuple[ScoredPrompt | Refusal | None, Tensor | None]]
    committed: Sequence[_Committed]  # whose feature rows are kept
    rows: Tensor | None  # these feature rows; None if they could not be projected


class PackedRunner:
    """The `BatchRunner` of a real target."""

    def __init__(
        self,
        runner: Runner,
        kv_cache: KVCacheManager,
        sampler: Sampler,
        store: FeatureStore | None = None,
    ) -> None:
        """store: of feature rows, the same as in `kv_cache`."""
        self._runner, self._kv_cache, self._sampler, self._store = runner, kv_cache, sampler, store
        self._watch = DrawsWatch(secrets.randbits(128))  # its noise is a secret of this process
        self._rounds = 0
        self._ahead = runner.device.type != "cpu"

    def forget(self, state: CachedSequence) -> None:
        self._runner.release(state)

    def inputs(self, item: VerifyItem, state: CachedSequence) -> _Inputs | Refusal:
        """What the pass and the rule take of an item, read from its sequence and its pages."""
        masks = masks_of(state, item)
        if isinstance(masks, Refusal):
            return masks
        ids = [item.anchor, *item.draft_ids]
        slots = self._kv_cache.slots(state, 0, state.cached + len(ids))
        segment = Segment(state, state.cached, ids, slots, state.given)
        return _Inputs(segment, shaper_of(state), masks)

    def execute(self, prepared: PreparedBatch[_Inputs]) -> ExecutedBatch:
        """Runs the pass, the rule and the projection, on any thread."""
        self._watch.clear()
        chunks, segments = prepared.chunks, [row.inputs.segment for row in prepared.rows]
        row = prepared.tokens
        logit_rows = list(range(row))
        for chunk in chunks:
            state = chunk.state
            segments.append(Segment(state, state.cached, chunk.token_ids, chunk.slots, state.given))
            logit_rows += range(row, row + len(chunk.next_ids))
            row += len(chunk.token_ids)
            if chunk.ends:  # a draw follows only the last token of a prompt
                logit_rows.append(row - 1)
        result = self._runner.run(segments, logit_rows if chunks else None)
        prepared = sound(prepared, result.logits.shape[-1])
        # On a GPU all tokens are projected before the rule decides which are committed: one
        # synchronization then covers verdicts and rows. On a CPU there is none to save, and a row
        # that is not committed costs its time.
        ahead, taps = None, result.taps
        reads = any(row.state.keep_features for row in prepared.rows)
        if self._ahead and reads and self._store is not None and taps is not None:
            with contextlib.suppress(Exception):  # `_project` tries again, with fewer
                ahead = self._store.under_way(taps[:row])
        near_ties: Counter[int] = Counter()
        decided = self._decide(prepared.rows, result, near_ties) if prepared.rows else []
        labels = self._watch.labels()
        draws: list[Draws] = []
        if labels:
            watched = [row for row in prepared.rows if not row.state.repeatable]
            draws = self._watch.sums({row.state.sequence: row.item.drafter for row in watched})
        saw = RuleStatistics(near_ties.total(), labels, draws)
        committed, first = list[_Committed](), 0
        for (_, item, state, tokens, _), each in zip(prepared.rows, decided, strict=True):
            if not isinstance(each, Refusal):
                ids = [item.anchor, *item.draft_ids[: each[0]]]
                committed.append(_Committed(state, state.cached, ids, first))
            first += tokens
        prompts: list[tuple[ScoredPrompt | Refusal | None, Tensor | None]] = []
        row = last = prepared.tokens  # of all tokens, of logits
        for chunk in chunks:
            state, first, last = chunk.state, last, last + len(chunk.next_ids)
            scored = _scored(state, result.logits[first:last], chunk.next_ids)
            prompts.append((scored, result.logits[last].clone() if chunk.ends else None))
            last += chunk.ends
            committed.append(_Committed(state, state.cached, list(chunk.token_ids), row))
            row += len(chunk.token_ids)
        kept = [each for each in committed if each.state.keep_features]
        rows = self._project(kept, taps, ahead)
        return ExecutedBatch(prepared, saw, _Made(decided, prompts, kept, rows))

    def _decide(
        self, rows: Sequence[BatchRow[_Inputs]], result: Pass, near_ties: Counter[int]
    ) -> list[_Complete]:
        self._rounds += 1
        due = len(rows) < MANY or self._rounds % EVERY == 0
        cases, first = list[PackedCase](), 0
        masks = list[tuple[int, Masks]]()
        for _, item, state, tokens, inputs in rows:
            cases.append(
                PackedCase(item.cursor, state.params, first, item.draft_ids, item.q, inputs.shaper)
            )
            if inputs.masks is not None:
                masks.append((first, inputs.masks))
            first += tokens
        mask(result.logits, masks)
        decisions = self._sampler(result.logits, cases, near_ties, self._watch if due else None)
        return [
            _with_logprobs(row.state, result.logits[case.first_row :], row.item.draft_ids, decided)
            for row, case, decided in zip(rows, cases, decisions, strict=True)
        ]

    def _project(
        self, kept: Sequence[_Committed], taps: Tensor | None, ahead: Tensor | None
    ) -> Tensor | None:
        """The feature rows of committed tokens; None if that fails, which costs the rows alone."""
        if not kept or self._store is None:
            return None
        try:
            if ahead is not None:
                return _picked(ahead, kept)
            count = sum(len(each.token_ids) for each in kept)
            return self._store.project(_picked(taps, kept), count)
        except Exception as error:
            log.error("rows.not_projected", sequences=len(kept), exc_info=error)
            return None

    def commit(self, executed: ExecutedBatch) -> list[Verdict | Refusal]:
        """Commits a pass to its sequences; returns each outcome. Those dropped since keep their
        pages until the pass has ended, and what is written there is of no more use."""
        kv_cache, prepared = self._kv_cache, executed.prepared
        made: _Made = executed.made
        outcomes: list[Verdict | Refusal] = []
        for (_, item, state, _, inputs), decided in zip(prepared.rows, made.decided, strict=True):
            if isinstance(decided, Refusal):
                if decided.reason is RefusalReason.INTERNAL:
                    kv_cache.forget_prefix(state)
                outcomes.append(decided)
            else:
                masks = inputs.masks
                form = FormEffect() if masks is None else in_form(masks, item.draft_ids, decided[0])
                outcomes.append(self._commit_item(state, item, *decided, form))
        for chunk, (scored, logits) in zip(prepared.chunks, made.prompts, strict=True):
            _commit_chunk(chunk, scored)
            if chunk.state.broken is not None:
                kv_cache.forget_prefix(chunk.state)
            kv_cache.keep_state(chunk.state)
            if logits is not None:
                chunk.state.last_logits = logits
        if not self._keep(made):  # rows are for drafts: without them the verdicts stand
            for kept in made.committed:
                kept.state.keep_features, kept.state.salt = False, None
        for chunk in prepared.chunks:
            if chunk.state.prefilled:
                # after `_keep`, as prefixes share feature rows too
                kv_cache.keep_prefix(chunk.state)
        return outcomes

    def _commit_item(
        self,
        state: CachedSequence,
        item: VerifyItem,
        accepted: int,
        next_token: int,
        logprobs: tuple[ScoredToken, ...],
        form: FormEffect,
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

    def _keep(self, made: _Made) -> bool:
        """Stores feature rows, in one call: a cohort has a row or two per sequence. False if they
        could not be made or stored."""
        kept = made.committed
        if not kept or self._store is None:
            return True
        if made.rows is None:
            return False
        try:
            slots = self._kv_cache.where(
                [(each.state, each.start, len(each.token_ids)) for each in kept]
            )
            self._store.put(slots, made.rows)
        except Exception as error:
            log.error("rows.not_kept", sequences=len(kept), exc_info=error)
            return False
        return True


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


def _picked(rows: Tensor | None, committed: Sequence[_Committed]) -> Tensor | None:
    """The rows of a pass [T, ...] for committed tokens, in order; None without rows."""
    if rows is None:
        return None
    ends = [each.row + len(each.token_ids) for each in committed]
    if all(each.row == end for each, end in zip(committed[1:], ends[:-1], strict=True)):
        # contiguous, as in a plain round
        return rows[committed[0].row : ends[-1]]
    index = [each.row + j for each in committed for j in range(len(each.token_ids))]
    return rows.index_select(0, torch.tensor(index, device=rows.device))
