"""The core of a verify engine: sequences with their KV blocks, queued prompts, rounds in packed
passes. No torch.

Two engines extend it with a `BatchRunner`: `engine.VerifyEngine` runs a target, and
`synthetic.SyntheticVerifyEngine` sleeps. All methods run one at a time, on the engine's thread or
in a turn (see `round_driver`); `run` of a step may run meanwhile on another thread (see
`running_step`), and any thread may read properties.

A command about one sequence is checked before anything is computed, so a bad row never affects
other sequences. Pages for a step are reserved before it begins (`grow`). A sequence or a prompt is
in one pass at a time.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from dspark.pages import EngineUsage
from dspark.rounds.events import OrderRow
from dspark.types import Constraint, Cursor, Refusal, SamplingParams, Verdict
from verify_service.batch_runner import (
    BatchRow,
    BatchRunner,
    FeatureRun,
    Grammar,
    KeptRows,
    PreparedBatch,
    PromptChunk,
    TargetFacts,
    VerdictBatch,
)
from verify_service.config import VerifyConfig
from verify_service.kv_cache_manager import KVCacheManager
from verify_service.running_step import FAILED, RunningStep
from verify_service.sequences import (
    CachedSequence,
    VerifyItem,
    check_item,
    check_prompt,
    failed,
    invalid,
    stale,
    unknown,
)

# prompt tokens per round if `step_prefill_tokens` is 0
RIDE_ALONG = {"cpu": 64, "cuda": 512}
# most tokens of a scored prompt in a pass, as each needs logits over the whole vocabulary
SCORED = 256


class EngineCore(ABC):
    """One target, one pool of KV blocks, and the sequences in it."""

    target: TargetFacts
    projection: str  # fingerprint of the feature projection; empty: no rows are made
    device: Any
    dtype: str
    attention_path: str
    attention_reason: str  # why the path is not paged; empty if it is

    def __init__(
        self, config: VerifyConfig, version: str, kv_cache: KVCacheManager, step: BatchRunner
    ) -> None:
        self.config, self.fingerprint = config, version
        self._kv_cache, self._step = kv_cache, step
        # sequences whose prompts have to run, by number, oldest first
        self._line: dict[int, CachedSequence] = {}
        self._ride_along = config.step_prefill_tokens or RIDE_ALONG.get(
            str(self.device).partition(":")[0], 512
        )

    @abstractmethod
    def compile(self, constraint: Constraint, salt: str) -> Future[Grammar | Refusal]:
        """Compiles a grammar on another thread; the future holds it, or why there is none.

        salt: requests with an equal one share compiled grammars, as they share prefixes; what is
        before its first slash is the tenant.
        """

    @abstractmethod
    def _drawn_anchor(self, state: CachedSequence, grammar: Grammar | None) -> int | Refusal:
        """Draws the first token behind a prompt that has run."""

    def close(self) -> None:
        """Ends what the engine runs in other processes."""
        return

    @property
    def feature_width(self) -> int:
        """Width of a feature row; 0 without a projection."""
        return self._kv_cache.store.width if self._kv_cache.store is not None else 0

    @property
    def held(self) -> EngineUsage:
        return self._kv_cache.held

    def _unserved(self, params: SamplingParams, scores: int | None) -> Refusal | None:
        """Why this engine cannot serve these parameters, or `scores` top tokens per prompt token;
        None if it can."""
        return None

    def _salted(self, salt: str, prompt_len: int) -> str:
        """The salt under which a prompt of this length shares prefixes."""
        return salt

    def open(
        self,
        cursor: Cursor,
        params: SamplingParams,
        reserve_tokens: int,
        keep_features: bool,
        *,
        owner: int = 0,
        token_ids: Sequence[int],
        salt: str | None = "",
        scores: int | None = None,
        repeatable: bool = False,
    ) -> Refusal | None:
        """Opens a sequence with pages for its prompt, less the cached prefix. Its prompt runs in
        chunks, in the passes of rounds or between them.

        A higher epoch replaces a lower one. salt: of the prefix cache; None: the sequence neither
        uses nor fills the cache. scores: top tokens to report per prompt token; None: no scoring.
        """
        state = self._kv_cache.states.get(cursor.sequence)
        if state is not None and cursor.epoch <= state.epoch:
            return stale(f"epoch {cursor.epoch} is already held, or followed by {state.epoch}")
        problem = check_prompt(
            cursor,
            token_ids,
            reserve_tokens,
            vocab_size=self.target.vocab_size,
            context_length=self.target.context_length,
        )
        if (problem := problem or self._unserved(params, scores)) is not None:
            return problem
        if state is not None:
            self._drop(state)
        opened = CachedSequence(
            cursor.sequence,
            cursor.epoch,
            owner,
            params,
            cursor.committed_len,
            keep_features,
            token_ids,
            reserve_tokens,
            salt=None
            if salt is None
            else self._salted(salt, params.prompt_len or cursor.committed_len),
            repeatable=repeatable,
            scores=None if scores is None else min(scores, self.target.vocab_size),
        )
        refusal = self._kv_cache.admit(opened, reserve_tokens, token_ids)
        if refusal is None:
            self._line[cursor.sequence] = opened
        return refusal

    def first_token(
        self, sequence: int, *, epoch: int | None = None, grammar: Grammar | None = None
    ) -> int | Refusal:
        """Draws the anchor after a finished prefill, or says why that failed. grammar: compiled
        from the request's constraint."""
        state = self._kv_cache.states.get(sequence)
        if state is None or epoch not in (None, state.epoch):
            return unknown(Cursor(sequence, epoch or 0, 0, 0))
        if state.broken is not None:
            return state.broken
        if state.anchored or state.cached < state.prompt_len:
            return unknown(Cursor(sequence, state.epoch, 0, 0))
        anchor = self._drawn_anchor(state, grammar)
        if not isinstance(anchor, Refusal):
            state.token_ids.append(anchor)
            state.anchored = True
        return anchor

    def find(self, sequence: int, epoch: int) -> CachedSequence | None:
        """The sequence under this epoch, or None."""
        state = self._kv_cache.states.get(sequence)
        return None if state is None or state.epoch != epoch else state

    def release(self, sequence: int, epoch: int) -> bool:
        """Frees a sequence held under this epoch or a lower one; returns whether there was one."""
        state = self._kv_cache.states.get(sequence)
        if state is None or state.epoch > epoch:
            return False
        self._drop(state)
        return True

    def release_owner(self, owner: int) -> int:
        """Frees all sequences that a stream opened; returns their number."""
        mine = [state for state in self._kv_cache.states.values() if state.owner == owner]
        for state in mine:
            self._drop(state)
        return len(mine)

    def grow(self, sequence: int, epoch: int, committed_len: int, slots: int) -> int | None:
        """Reserves pages for an anchor and up to `slots` more tokens; returns how many of these,
        or None without a page for the anchor."""
        state = self.find(sequence, epoch)
        return None if state is None else self._kv_cache.grow_within(state, committed_len, slots)

    def kept_rows(self, asked: Sequence[OrderRow]) -> KeptRows:
        """Feature rows and grammar masks to send with an order."""
        return self._kv_cache.kept_rows(asked)

    def features(self, cursor: Cursor, start: int) -> FeatureRun | None:
        """Kept rows of positions start .. committed_len - 2, to fill a drafter's context; None if
        they are not here."""
        state = self.find(cursor.sequence, cursor.epoch)
        if state is None or not state.keep_features or cursor.committed_len > state.committed_len:
            return None
        return self._kv_cache.rows(state, start, cursor.committed_len - 1)

    # -- passes -----------------------------------------------------------------------------

    def prefill_next(self, *, owner: int = 0) -> bool:
        """Runs a chunk of one of the owner's prompts in a pass of its own; False if none can run.
        Raises what the pass raised."""
        step = self.begin_prefill(owner=owner)
        if step is None:
            return False
        step.run()
        self.end(step)
        if step.failure is not None:
            raise step.failure
        return True

    def begin_prefill(self, *, short: bool = False, owner: int = 0) -> RunningStep | None:
        """Prepares the pass of `prefill_next`; None without one. short: as few tokens as ride in a
        round."""
        began = time.perf_counter_ns()
        chunks = self._chunks(self._ride_along if short else self.config.prefill_chunk, alone=owner)
        if not chunks:
            return None
        return RunningStep(self._step, [], [PreparedBatch((), chunks, began)], began)

    def _chunks(self, budget: int, *, alone: int | None = None) -> list[PromptChunk]:
        """The next chunks of prompts that are in no pass, `budget` tokens in all. alone: an owner;
        only one prompt of its own gets a chunk.

        By turns those with least left go first, and the oldest: a short prompt does not wait for
        long ones, and a long one does not wait for ever. One whose slots cannot be read is broken.
        """
        chunks: list[PromptChunk] = []
        waiting: list[CachedSequence] = []
        for state in list(self._line.values()):
            if state.prefilled or state.broken is not None:
                del self._line[state.sequence]
            elif not state.in_pass and alone in (None, state.owner):
                waiting.append(state)
        if len(waiting) > 1:
            oldest = waiting[0]
            oldest.passed_over = not oldest.passed_over
            if oldest.passed_over:
                waiting.sort(key=lambda state: state.prompt_len - state.cached)
        for state in waiting:
            most = budget if state.scores is None else min(budget, SCORED)
            start, stop = state.cached, self._kv_cache.chunk_end(state, most)
            behind = () if state.scores is None else state.prompt[start + 1 : stop + 1]
            try:
                slots = self._kv_cache.slots(state, 0, stop)
            except Exception as error:
                state.broken = failed(state.sequence, error)
                continue
            chunks.append(PromptChunk(state, state.prompt[start:stop], behind, slots))
            budget -= stop - start
            if budget <= 0 or alone is not None:
                break
        return chunks

    def judge_cohort(self, items: Sequence[VerifyItem]) -> VerdictBatch:
        """Reserves pages for a cohort and verifies it in packed passes of at most
        `max_batch_tokens`. Bad items are refused without effect on others."""
        for item in items:
            self.grow(*item.cursor[:2], item.cursor.committed_len, len(item.draft_ids))
        step = self.begin(items)
        step.run()
        judged = self.end(step)
        if step.failure is not None:
            raise step.failure  # every pass failed: more likely the device than an item
        return judged

    def begin(self, items: Sequence[VerifyItem | Refusal]) -> RunningStep:
        """Prepares a cohort's step: then call its `run` on any thread, then `end` here. items: one
        per sequence, oldest first, with the pages that `grow` reserves; a refusal is its outcome.

        Passes have at most `max_batch_tokens` tokens of items; prompts ride in the first one.
        """
        began = time.perf_counter_ns()
        outcomes: list[Verdict | Refusal] = [FAILED] * len(items)
        passes: list[list[BatchRow[Any]]] = []
        size = 0
        for place, item in enumerate(items):
            row = item if isinstance(item, Refusal) else self._row(place, item)
            if isinstance(row, Refusal):
                outcomes[place] = row
                continue
            if not passes or size + row.tokens > self.config.max_batch_tokens:
                passes.append([])
                size = 0
            passes[-1].append(row)
            size += row.tokens
        riding = self._chunks(self._ride_along) if self._line and passes else ()
        batches = [
            PreparedBatch(rows, () if number else riding, began)
            for number, rows in enumerate(passes)
        ]
        return RunningStep(self._step, outcomes, batches, began)

    def _row(self, place: int, item: VerifyItem) -> BatchRow[Any] | Refusal:
        """An item of a step, or why it cannot be in a pass."""
        state = self._kv_cache.states.get(item.cursor.sequence)
        if state is None:
            return unknown(item.cursor)
        if (problem := check_item(state, item)) is not None:
            return problem
        if state.in_pass:
            return invalid("cursor: the sequence is in a pass that has not ended")
        try:
            inputs = self._step.inputs(item, state)
        except Exception as error:
            return failed(state.sequence, error)
        if isinstance(inputs, Refusal):
            return inputs
        return BatchRow(place, item, state, 1 + len(item.draft_ids), inputs)

    def end(self, step: RunningStep) -> VerdictBatch:
        """Commits a step that has run."""
        judged = step.end()
        for state in step.states:
            if self._kv_cache.states.get(state.sequence) is not state:  # dropped meanwhile
                self._free(state)
        return judged

    def _drop(self, state: CachedSequence) -> None:
        """Drops a sequence; its pages are freed once no unfinished pass holds them."""
        self._line.pop(state.sequence, None)
        if state.in_pass:
            del self._kv_cache.states[state.sequence]
        else:
            self._free(state)

    def _free(self, state: CachedSequence) -> None:
        self._kv_cache.drop(state)
        self._step.forget(state)
