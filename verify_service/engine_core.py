"""What the services ask of a verify engine: sequences with their KV blocks, prompts in line, rounds
in packed passes.

Two engines are made of it and a `BatchRunner`: `engine.VerifyEngine`, whose target runs, and
`synthetic.SyntheticVerifyEngine`, which sleeps. No torch. Everything happens on the one thread that
owns the device, but for `run` of a step under way (see `under_way` for what that may count on);
properties may be read from anywhere.

A command about one sequence is checked before anything is computed, so a bad row never touches its
neighbours. A step first asks for the pages of everybody in it, the oldest sequence first, then
acts; who gets none is refused and stays where it stood. A sequence, or a prompt (see
`prompt_line`), is in one pass at a time.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from dspark.pages import Held
from dspark.rounds.events import OrderRow
from dspark.types import (
    Constraint,
    Cursor,
    Refusal,
    RefusalReason,
    SamplingParams,
    ScoredPrompt,
    ScoredToken,
    Verdict,
)
from verify_service.batch_runner import (
    BatchRunner,
    FeatureRun,
    Grammar,
    Judged,
    KeptRows,
    PreparedBatch,
    Progress,
    Rider,
    TargetFacts,
)
from verify_service.config import VerifyConfig
from verify_service.kv_cache_manager import KVCacheManager
from verify_service.prompt_line import PromptLine
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
from verify_service.under_way import Batch, UnderWay, halves

RIDE_ALONG = {
    "cpu": 64,
    "cuda": 512,
}  # prompt tokens in a round, where the configuration leaves it to the device


class EngineCore(ABC):
    """One target, one pool of KV blocks, the sequences that live in it."""

    target: TargetFacts
    projection: str  # fingerprint of what feature rows are made with; empty: none are made
    device: Any
    dtype: str
    attention_path: str
    attention_reason: str  # why the path is not paged; empty where it is

    def __init__(
        self, config: VerifyConfig, version: str, holdings: KVCacheManager, step: BatchRunner
    ) -> None:
        self.config, self.fingerprint = config, version
        self._holdings, self._step = holdings, step
        self.line = PromptLine(holdings)
        # sequences in steps under way; of a number that left nobody else begins meanwhile
        self._busy: set[int] = set()
        self._ride_along = config.step_prefill_tokens or RIDE_ALONG.get(
            str(self.device).partition(":")[0], 512
        )

    @abstractmethod
    def compile(self, constraint: Constraint, salt: str) -> Future[Grammar | Refusal]:
        """Soon, and on another thread: the grammar, or why there is none.

        salt: it is given again among equals, as computed prefixes are. TENANT/WORD, or without a
        tenant any word.
        """

    @abstractmethod
    def first_token(
        self, sequence: int, *, epoch: int | None = None, grammar: Grammar | None = None
    ) -> int | Refusal:
        """Draws the anchor that follows a finished prefill. grammar: of the form that is asked
        for."""

    @property
    def feature_width(self) -> int:
        """Width of a feature row; 0 without a projection."""
        return self._holdings.store.width if self._holdings.store is not None else 0

    @property
    def held(self) -> Held:
        return self._holdings.held

    def _unserved(self, params: SamplingParams, scores: int | None) -> Refusal | None:
        """Why nobody here can draw by these parameters, or tell so many of a prompt's likeliest
        tokens."""
        return None

    def _salted(self, salt: str, prompt_len: int) -> str:
        """What prefixes must have in common besides their tokens."""
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
    ) -> Refusal | None:
        """Makes room for the prompt, whose chunks will follow, less what is `spared`.

        A higher epoch takes the place of a lower one. salt: of computed prefixes; None: it neither
        uses nor leaves any.
        """
        state = self._holdings.states.get(cursor.sequence)
        if state is not None and cursor.epoch <= state.epoch:
            return stale(
                state, f"epoch {cursor.epoch} is already held, or followed by {state.epoch}"
            )
        problem = check_prompt(
            cursor,
            token_ids,
            reserve_tokens,
            vocab_size=self.target.vocab_size,
            context_length=self.target.context_length,
        )
        if (problem := problem or self._unserved(params, scores)) is not None:
            return problem
        if cursor.sequence in self._busy:
            return Refusal(
                RefusalReason.NO_PAGES,
                "what was held under this number is in a pass that has not ended",
            )
        if state is not None:
            self._drop(cursor.sequence)
        opened = CachedSequence(
            cursor.sequence,
            cursor.epoch,
            owner,
            params,
            cursor.committed_len,
            keep_features,
            salt=None
            if salt is None
            else self._salted(salt, params.prompt_len or cursor.committed_len),
            scores=None if scores is None else min(scores, self.target.vocab_size),
        )
        return self._holdings.admit(opened, reserve_tokens, token_ids)

    def _find(self, sequence: int, epoch: int) -> CachedSequence | None:
        """What is held under this epoch."""
        state = self._holdings.states.get(sequence)
        return None if state is None or state.epoch != epoch else state

    def busy(self, sequence: int) -> bool:
        """Whether a pass that has not ended holds what has, or had, this number: it cannot be
        opened until then."""
        return sequence in self._busy

    def spared(self, sequence: int, epoch: int) -> int:
        """Leading tokens of the prompt that were found computed."""
        state = self._find(sequence, epoch)
        return 0 if state is None else state.spared

    def anchor_logprobs(self, sequence: int) -> tuple[ScoredToken, ...]:
        """Of the token that `first_token` drew; empty when none are asked for."""
        state = self._holdings.states.get(sequence)
        return state.anchor_logprobs if state is not None else ()

    def prompt_logprobs(self, sequence: int) -> ScoredPrompt | None:
        """Of a prompt that has run, once; None when nobody asked for them."""
        state = self._holdings.states.get(sequence)
        if state is None or state.scores is None:
            return None
        told, state.scored = ScoredPrompt.joined(state.scored, state.scores), []
        return told

    def release(self, sequence: int, epoch: int) -> bool:
        """Frees a sequence held under this epoch or a lower one; an unknown one is fine."""
        state = self._holdings.states.get(sequence)
        if state is None or state.epoch > epoch:
            return False
        self._drop(sequence)
        return True

    def release_owner(self, owner: int) -> int:
        """Frees everything a stream opened; returns how many."""
        mine = [state.sequence for state in self._holdings.states.values() if state.owner == owner]
        for sequence in mine:
            self._drop(sequence)
        self.line.forget(owner)
        return len(mine)

    def grow(self, sequence: int, epoch: int, committed_len: int, slots: int) -> int | None:
        """Pages for an anchor and as many of `slots` more tokens as there are any for; how many."""
        state = self._find(sequence, epoch)
        return None if state is None else self._holdings.grow_within(state, committed_len, slots)

    def kept_rows(self, asked: Sequence[OrderRow]) -> KeptRows:
        """Rows that travel with an order, in one piece, and masks."""
        kept = self._holdings.kept_rows(asked)
        masks = [self._first_mask(row.sequence, row.epoch) for row in asked]
        return kept._replace(masks=masks) if any(masks) else kept

    def _first_mask(self, sequence: int, epoch: int) -> bytes:
        """What the form of its answer lets come next; empty where it has none."""
        state = self._find(sequence, epoch)
        if state is None or state.matcher is None or state.matcher.too_slow:
            return b""
        try:
            return state.matcher.masks(())[:1].tobytes()
        except Exception:  # its next pass meets the same, and says so
            return b""

    def features(self, cursor: Cursor, start: int) -> FeatureRun | Refusal:
        """Kept rows of positions start .. committed_len - 2, to fill a drafter with."""
        state = self._find(cursor.sequence, cursor.epoch)
        if state is None:
            return unknown(cursor)
        if not state.keep_features:
            return invalid("no feature rows are kept for this sequence")
        if cursor.committed_len > state.committed_len or not state.anchored:
            return stale(
                state,
                f"committed_len {cursor.committed_len} was claimed, {state.committed_len} is here",
            )
        # A round may have finished since the command was sent; what it added travels on its own.
        stop = max(cursor.committed_len - 1, 0)
        return (
            self._holdings.rows(state, start, stop)
            if start <= stop
            else invalid(f"from_position: {start} is past {stop}")
        )

    # -- passes -----------------------------------------------------------------------------

    def prefill_next(self, *, owner: int = 0) -> Progress | None:
        """A chunk of the owner's first prompt in line, in a pass of its own; what it brought,
        unless older news wait. None when there are none."""
        step = self.begin_prefill(owner=owner)
        if step is not None:
            step.run()
            self.end(step)
            if step.failure is not None:
                raise step.failure
        return self.line.take_news(owner)

    def begin_prefill(self, *, short: bool = False, owner: int = 0) -> UnderWay | None:
        """The same as a step under way, a short one where a round may come; what it brings is
        news."""
        began = time.perf_counter_ns()
        most = self._ride_along if short else self.config.prefill_chunk
        riders = self.line.riders(most, self._busy, alone=owner)
        prepared, riders = self._prepare((), riders)
        if not riders:
            return None
        return self._under_way(UnderWay(self._step, (), {}, [Batch((), prepared)], riders, began))

    def judge_cohort(self, items: Sequence[VerifyItem]) -> Judged:
        """One packed pass over every item that fits, then the rule. Bad rows are refused, the
        others do not notice."""
        step = self.begin(items)
        step.run()
        judged = self.end(step)
        if step.failure is not None:
            raise step.failure  # rather the device than one of them
        return judged

    def begin(self, items: Sequence[VerifyItem]) -> UnderWay:
        """The same in three parts: this one, `run` of what it gives, on any thread, and `end`."""
        began = time.perf_counter_ns()
        outcomes: dict[int, Verdict | Refusal] = {}
        runnable: list[int] = []
        seen: set[int] = set()
        for index, item in enumerate(items):
            if item.cursor.sequence in seen:
                outcomes[index] = invalid("cursor.sequence: twice in one cohort")
                continue
            seen.add(item.cursor.sequence)
            state = self._holdings.states.get(item.cursor.sequence)
            answer = check_item(state, item, vocab_size=self.target.vocab_size)
            if answer is None and item.cursor.sequence in self._busy:
                answer = invalid("cursor: the sequence is in a pass that has not ended")
            if answer is None and state is not None:
                answer = self._step.unready(state)
            if answer is None:
                runnable.append(index)
            else:
                outcomes[index] = answer
        given = self._ask(items, runnable, outcomes)
        riders: list[Rider] = []
        batches: list[Batch] = []
        waiting: deque[Sequence[int]] = deque(self._batches(given))
        while waiting:
            indices, riding = waiting.popleft(), list[Rider]()
            if not batches and self.line.prompts:
                riding = self.line.riders(self._ride_along, self._busy)
            try:
                prepared, riding = self._prepare([given[index] for index in indices], riding)
            # of somebody in it, who is told once alone; the others go on
            except Exception as error:
                if len(indices) == 1:
                    outcomes[indices[0]] = failed(given[indices[0]].cursor.sequence, error)
                waiting.extendleft(reversed(halves(indices)))
                continue
            riders += riding
            batches.append(Batch(indices, prepared))
        return self._under_way(UnderWay(self._step, items, outcomes, batches, riders, began))

    def end(self, step: UnderWay) -> Judged:
        """What came of a step that has run; of prompts in it, as news."""
        judged, progress = step.end()
        for each in progress:
            self.line.tell(each)
        for state in step.states:
            self._busy.remove(state.sequence)
            if self._holdings.states.get(state.sequence) is not state:  # it has left meanwhile
                self._free(state)
        return judged

    def _under_way(self, step: UnderWay) -> UnderWay:
        self._busy.update(state.sequence for state in step.states)
        return step

    def _drop(self, sequence: int) -> None:
        """Lets go of it: of what it holds once no pass under way does."""
        if sequence in self._busy:
            del self._holdings.states[sequence]
        else:
            self._free(self._holdings.states[sequence])

    def _free(self, state: CachedSequence) -> None:
        self._holdings.drop(state)
        self._step.forget(state.sequence)

    def _ask(
        self,
        items: Sequence[VerifyItem],
        runnable: Sequence[int],
        outcomes: dict[int, Verdict | Refusal],
    ) -> dict[int, VerifyItem]:
        """Pages for everybody, the oldest sequence first; those who get them by index, in the order
        of the items.

        Invariant 2, no peeking: a prefix that finds too few pages is cut to those there are, and
        only an anchor without one is refused. Refusing for the length of the prefix, which depends
        on its own tokens by way of later confidences, would make what is drawn instead depend on
        them too.
        """
        given: dict[int, VerifyItem] = {}
        for index in sorted(runnable, key=lambda i: items[i].cursor.sequence):
            item = items[index]
            state = self._holdings.states[item.cursor.sequence]
            slots = self._holdings.grow_within(state, state.cached + 1, len(item.draft_ids))
            if slots is None:
                outcomes[index] = Refusal(
                    RefusalReason.OUT_OF_PAGES, f"no page is left for token {state.cached + 1}"
                )
            else:
                given[index] = item if slots == len(item.draft_ids) else item.prefix(slots)
        return dict(sorted(given.items()))

    def _batches(self, items: Mapping[int, VerifyItem]) -> list[list[int]]:
        """Indices of items by pass."""
        batches: list[list[int]] = []
        size = 0
        for index, item in items.items():
            count = 1 + len(item.draft_ids)
            if not batches or size + count > self.config.max_batch_tokens:
                batches.append([])
                size = 0
            batches[-1].append(index)
            size += count
        return batches

    def _prepare(
        self, items: Sequence[VerifyItem], riders: list[Rider]
    ) -> tuple[PreparedBatch, list[Rider]]:
        """A pass, and the prompts that are in it. One that cannot be prepared goes no further and
        takes nobody along; of several, those behind the first wait for a later pass. Raises what is
        no prompt's fault."""
        try:
            return self._step.prepare(items, [chunk for _, chunk in riders]), riders
        except Exception as error:
            if not riders:
                raise
            without = self._step.prepare(items, ())
            if len(riders) > 1:
                return self._prepare(items, riders[:1])
            prompt = riders[0][0]
            self.line.tell(Progress(prompt, problem=failed(prompt.sequence, error)))
            return without, []
