"""The device side of a verifier: prefill in chunks, one packed pass per cohort, the acceptance rule, kept features.

Synchronous and free of gRPC; everything runs on the one thread that owns the device. A command about one sequence is
checked before anything is computed, so a bad row never touches its neighbours. Room for a sequence's whole life is
reserved when it is opened: ask, then act.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from dspark.decoding.acceptance import Case
from dspark.decoding.acceptance import first_token as draw_first_token
from dspark.model.checkpoint import LoadedTarget
from dspark.model.context import ContextProjection
from dspark.pages import PageTable
from dspark.types import Cursor, Law, Refusal, RefusalReason, TokenLogprobs, Verdict
from verify_service.config import VerifyConfig
from verify_service.feature_store import ROW_DTYPE, FeatureRows, FeatureStore
from verify_service.forced import Forced
from verify_service.interface import Held as Held
from verify_service.interface import Judged as Judged
from verify_service.judging import judge_each, rule_problem, shaper_of, told
from verify_service.loading import load_parts
from verify_service.passes import Pass, Runner
from verify_service.plan import Segment
from verify_service.sequences import SequenceState, VerifyItem, check_item, check_prompt, invalid, stale, unknown


class VerifyEngine:
    """One target, one pool of pages, the sequences that live in it."""

    def __init__(
        self,
        *,
        target: LoadedTarget,
        runner: Runner,
        projection: ContextProjection | None,
        config: VerifyConfig,
        version: str,
    ) -> None:
        self.target = target
        self.config = config
        self.fingerprint = version
        self.projection = projection
        self._runner = runner
        pages = config.kv_tokens // config.page_size
        self._pages = PageTable(pages, config.page_size)
        self._sequences: dict[int, SequenceState] = {}
        self._near_ties: Counter[int] = Counter()
        self._last_logits: dict[int, Tensor] = {}  # of prefilled sequences whose anchor is not drawn yet
        mean = config.force_acceptance
        self._forced = None if mean is None else Forced(mean, config.force_acceptance_slots)
        self._store: FeatureStore | None = None
        if projection is not None:
            width = projection.fc.out_features
            self._store = FeatureStore(pages * config.page_size, width, projection.fingerprint)

    @staticmethod
    def load(config: VerifyConfig) -> VerifyEngine:
        """Loads the weights and chooses the attention path; call it on the thread that will own the device."""
        parts = load_parts(config)
        return VerifyEngine(
            target=parts.target,
            runner=parts.runner,
            projection=parts.projection,
            config=config,
            version=parts.fingerprint,
        )

    # -- what it is -------------------------------------------------------------------------

    @property
    def attention_path(self) -> str:
        return self._runner.path

    @property
    def device(self) -> torch.device:
        return self._runner.device

    @property
    def dtype(self) -> str:
        return str(self.target.model.dtype).removeprefix("torch.")

    @property
    def feature_width(self) -> int:
        """Width of a feature row; 0 without a projection."""
        return self._store.width if self._store is not None else 0

    @property
    def held(self) -> Held:
        return Held(len(self._sequences), self._pages.held, self._pages.total)

    # -- life of a sequence -----------------------------------------------------------------

    def open(
        self,
        cursor: Cursor,
        law: Law,
        reserve_tokens: int,
        keep_features: bool,
        *,
        owner: int = 0,
        token_ids: Sequence[int] | None = None,
    ) -> Refusal | None:
        """Reserves room for the sequence; cursor.committed_len tokens will follow in chunks.

        A higher epoch takes the place of a lower one.
        """
        state = self._sequences.get(cursor.sequence)
        if state is not None and cursor.epoch <= state.epoch:
            return stale(state, f"epoch {cursor.epoch} is already held, or followed by {state.epoch}")
        problem = check_prompt(
            cursor,
            token_ids if token_ids is not None else [0] * cursor.committed_len,
            reserve_tokens,
            vocab_size=self.target.vocab_size,
            context_length=self.target.context_length,
        )
        problem = problem or rule_problem(law, self.target.vocab_size)
        if problem is not None:
            return problem
        if state is not None:
            self._drop(state)
        if len(self._sequences) >= self.config.max_sequences:
            return Refusal(RefusalReason.NO_PAGES, f"{len(self._sequences)} sequences are held, the limit")
        if not self._pages.can_reserve(reserve_tokens):
            free = self._pages.total - self._pages.held
            wanted = self._pages.pages_for(reserve_tokens)
            return Refusal(RefusalReason.NO_PAGES, f"{wanted} pages are needed and {free} are free")
        self._pages.reserve(cursor.sequence, reserve_tokens)
        self._sequences[cursor.sequence] = SequenceState(
            sequence=cursor.sequence,
            epoch=cursor.epoch,
            owner=owner,
            law=law,
            prompt_len=cursor.committed_len,
            capacity=self._pages.capacity(cursor.sequence),
            keep_features=keep_features,
        )
        return None

    def prefill_chunk(
        self, sequence: int, token_ids: Sequence[int], *, epoch: int | None = None, wants_rows: bool = True
    ) -> FeatureRows | Refusal | None:
        """Runs the next tokens of an opened sequence; returns their feature rows, None when nobody needs them."""
        state = self._sequences.get(sequence)
        if state is None or (epoch is not None and epoch != state.epoch):
            return unknown(Cursor(sequence, epoch or 0, 0, 0))
        start, stop = state.cached, state.cached + len(token_ids)
        if stop > state.prompt_len or not len(token_ids):
            return invalid(f"token_ids: {len(token_ids)} tokens after {start} of {state.prompt_len}")
        last = stop == state.prompt_len
        segment = Segment(sequence, start, token_ids, self._pages.slots(sequence, 0, stop))
        result = self._runner.run([segment], [len(token_ids) - 1] if last else [])
        state.cached = stop
        state.token_ids.extend(token_ids)
        if last:
            self._last_logits[sequence] = result.logits[-1]
        if not (state.keep_features or wants_rows):
            return None
        return self._features([(state, start, list(token_ids), 0)], result)[0]

    def timed_chunk(
        self, sequence: int, token_ids: Sequence[int], epoch: int, wants_rows: bool
    ) -> tuple[FeatureRows | Refusal | None, int]:
        """`prefill_chunk` and its nanoseconds on the device thread."""
        began = time.perf_counter_ns()
        made = self.prefill_chunk(sequence, token_ids, epoch=epoch, wants_rows=wants_rows)
        return made, time.perf_counter_ns() - began

    def first_token(self, sequence: int, *, epoch: int | None = None) -> int | Refusal:
        """Draws the anchor that follows a finished prefill."""
        state = self._sequences.get(sequence)
        logits = self._last_logits.pop(sequence, None)
        if state is None or logits is None or (epoch is not None and epoch != state.epoch):
            return unknown(Cursor(sequence, epoch or 0, 0, 0))
        cursor = Cursor(sequence, state.epoch, 0, state.committed_len)
        try:
            anchor = draw_first_token(logits, state.law, cursor, shaper_of(state))
        except FloatingPointError:
            return Refusal(RefusalReason.INTERNAL, "the target's logits are not numbers")
        state.anchor_logprobs = told(state.law, logits.unsqueeze(0), [anchor])
        state.token_ids.append(anchor)
        state.anchored = True
        return anchor

    def anchor_logprobs(self, sequence: int) -> tuple[TokenLogprobs, ...]:
        """Of the token that `first_token` drew; empty when its law asks for none."""
        state = self._sequences.get(sequence)
        return state.anchor_logprobs if state is not None else ()

    def release(self, sequence: int, epoch: int) -> bool:
        """Frees a sequence held under this epoch or a lower one; an unknown one is fine."""
        state = self._sequences.get(sequence)
        if state is None or state.epoch > epoch:
            return False
        self._drop(state)
        return True

    def release_owner(self, owner: int) -> int:
        """Frees everything a session opened; returns how many."""
        mine = [state for state in self._sequences.values() if state.owner == owner]
        for state in mine:
            self._drop(state)
        return len(mine)

    def features(self, cursor: Cursor, start: int) -> FeatureRows | Refusal:
        """Kept rows of positions start .. committed_len - 2, to fill a drafter with."""
        state = self._sequences.get(cursor.sequence)
        if state is None or state.epoch != cursor.epoch:
            return unknown(cursor)
        if self._store is None or not state.keep_features:
            return invalid("no feature rows are kept for this sequence")
        if cursor.committed_len > state.committed_len or not state.anchored:
            return stale(state, f"committed_len {cursor.committed_len} was claimed, {state.committed_len} is here")
        # A round may have finished since the command was sent; what it added travels on its own.
        stop = max(cursor.committed_len - 1, 0)
        if start > stop:
            return invalid(f"from_position: {start} is past {stop}")
        rows = self._store.get(self._pages.slots(cursor.sequence, start, stop))
        return FeatureRows(cursor.sequence, state.epoch, start, state.token_ids[start:stop], rows)

    # -- rounds -----------------------------------------------------------------------------

    def verify(self, items: Sequence[VerifyItem]) -> list[Verdict | Refusal]:
        """The outcomes of `judge_cohort` alone."""
        return self.judge_cohort(items).outcomes

    def judge_cohort(self, items: Sequence[VerifyItem]) -> Judged:
        """One packed pass over every item that fits, then the rule. Bad rows are refused, the others do not notice."""
        began = time.perf_counter_ns()
        outcomes: dict[int, Verdict | Refusal] = {}
        features: dict[int, FeatureRows | None] = {}
        runnable: list[int] = []
        seen: set[int] = set()
        replayed = 0
        for index, item in enumerate(items):
            if item.cursor.sequence in seen:
                outcomes[index] = invalid("cursor.sequence: twice in one cohort")
                continue
            seen.add(item.cursor.sequence)
            answer = check_item(self._sequences.get(item.cursor.sequence), item, vocab_size=self.target.vocab_size)
            if answer is None:
                runnable.append(index)
            else:
                outcomes[index] = answer
                replayed += isinstance(answer, Verdict)
        tokens = 0
        for batch in self._batches(items, runnable):
            tokens += self._judge_batch([(i, items[i]) for i in batch], outcomes, features)
        return Judged(
            outcomes=[outcomes[i] for i in range(len(items))],
            features=[features.get(i) for i in range(len(items))],
            replayed=replayed,
            tokens=tokens,
            forward_ns=time.perf_counter_ns() - began,
            near_ties=self._take_near_ties(),
        )

    def _take_near_ties(self) -> int:
        count, self._near_ties = self._near_ties.total(), Counter()
        return count

    def _batches(self, items: Sequence[VerifyItem], runnable: list[int]) -> Iterable[list[int]]:
        batch: list[int] = []
        size = 0
        for index in runnable:
            count = 1 + len(items[index].draft_ids)
            if batch and size + count > self.config.max_batch_tokens:
                yield batch
                batch, size = [], 0
            batch.append(index)
            size += count
        if batch:
            yield batch

    def _judge_batch(
        self,
        batch: list[tuple[int, VerifyItem]],
        outcomes: dict[int, Verdict | Refusal],
        features: dict[int, FeatureRows | None],
    ) -> int:
        """Runs and judges one packed pass; returns its tokens."""
        segments: list[Segment] = []
        cases: list[Case] = []
        row = 0
        for _, item in batch:
            state = self._sequences[item.cursor.sequence]
            ids = [item.anchor, *item.draft_ids]
            slots = self._pages.slots(state.sequence, 0, state.cached + len(ids))
            segments.append(Segment(state.sequence, state.cached, ids, slots))
            cases.append(Case(item.cursor, state.law, row, item.draft_ids, item.q, shaper_of(state)))
            row += len(ids)
        result = self._runner.run(segments, None)
        wanted: list[tuple[SequenceState, int, list[int], int]] = []
        judged: list[int] = []
        for (index, item), case, decided in zip(batch, cases, self._decide(result.logits, cases), strict=True):
            if isinstance(decided, Refusal):
                outcomes[index] = decided
                continue
            accepted, next_token = decided
            state = self._sequences[item.cursor.sequence]
            start = state.cached
            kept = [item.anchor, *item.draft_ids[:accepted]]
            state.token_ids.extend(item.draft_ids[:accepted])
            state.token_ids.append(next_token)
            state.cached += len(kept)
            through = state.cached if self._store is not None else 0
            logprobs = told(state.law, result.logits[case.first_row :], [*item.draft_ids[:accepted], next_token])
            state.last = Verdict(item.cursor, accepted, next_token, through, logprobs)
            outcomes[index] = state.last
            if state.keep_features or item.wants_rows:  # plain decoding pays for no projection
                wanted.append((state, start, kept, case.first_row))
                judged.append(index)
        for index, rows in zip(judged, self._features(wanted, result), strict=True):
            features[index] = rows
        return row

    def _decide(self, logits: Tensor, cases: list[Case]) -> list[tuple[int, int] | Refusal]:
        decided = judge_each(logits, cases, self._near_ties)
        return decided if self._forced is None else self._forced.apply(logits, cases, decided)

    @torch.inference_mode()
    def _features(
        self, wanted: list[tuple[SequenceState, int, list[int], int]], result: Pass
    ) -> list[FeatureRows | None]:
        """Projects the rows of committed tokens (state, first position, ids, first row of the pass) and keeps them."""
        if self.projection is None or self._store is None or result.taps is None or not wanted:
            return [None] * len(wanted)
        if len(wanted) == 1:
            first = wanted[0][3]
            taps = result.taps[first : first + len(wanted[0][2])]
        else:
            index = [first + j for _, _, ids, first in wanted for j in range(len(ids))]
            taps = result.taps.index_select(0, torch.tensor(index, device=result.taps.device))
        rows = self.projection.project(taps).to("cpu", ROW_DTYPE)
        made: list[FeatureRows | None] = []
        at = 0
        for state, start, ids, _ in wanted:
            mine = rows[at : at + len(ids)]
            at += len(ids)
            if state.keep_features:
                self._store.put(self._pages.slots(state.sequence, start, start + len(ids)), mine)
            made.append(FeatureRows(state.sequence, state.epoch, start, ids, mine))
        return made

    # -- for timing -------------------------------------------------------------------------

    def pretend(self, cursor: Cursor, law: Law, reserve_tokens: int) -> Refusal | None:
        """Opens a sequence as if cursor.committed_len tokens had been run and an anchor drawn. For timing only."""
        if (problem := self.open(cursor, law, reserve_tokens, keep_features=True)) is not None:
            return problem
        state = self._sequences[cursor.sequence]
        state.token_ids = [0] * (cursor.committed_len + 1)
        state.cached = cursor.committed_len
        state.anchored = True
        self._runner.fill(cursor.sequence, self._pages.slots(cursor.sequence, 0, reserve_tokens), state.cached)
        return None

    def rewind(self, sequence: int, cached: int) -> None:
        """Takes committed tokens back, so that the same step can be timed again. For timing only."""
        state = self._sequences[sequence]
        state.cached = cached
        state.token_ids = [0] * (cached + 1)
        state.last = None

    def forget_all(self) -> None:
        """Frees every sequence and the memory behind them. For use before serving only."""
        for state in list(self._sequences.values()):
            self._drop(state)
        self._runner.reset()

    def _drop(self, state: SequenceState) -> None:
        self._sequences.pop(state.sequence, None)
        self._last_logits.pop(state.sequence, None)
        self._pages.release(state.sequence)
        self._runner.release(state.sequence)
