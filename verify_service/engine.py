"""The device side of a verifier: prefill in chunks, one packed pass per cohort, the acceptance rule, kept features.

Synchronous and free of gRPC; everything runs on the one thread that owns the device, but for `run` of a step under way.
A command about one sequence is checked before anything is computed, so a bad row never touches its neighbours. A step
first asks for the pages of everybody in it, oldest first, then acts; who gets none is refused and stays where it stood.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import torch

from dspark.decoding.acceptance import first_token as draw_first_token
from dspark.decoding.masking import mask
from dspark.model.checkpoint import LoadedTarget
from dspark.model.context import Projection
from dspark.pages import Held
from dspark.types import Constraint, Cursor, Refusal, RefusalReason, SamplingParams, ScoredPrompt, ScoredToken, Verdict
from verify_service.batches import Batches
from verify_service.config import VerifyConfig
from verify_service.feature_store import FeatureRows, FeatureStore
from verify_service.grammars.grammars import Grammars
from verify_service.interface import Grammar, KeptRows, Progress, PromptPrefill, RowSpan
from verify_service.interface import Judged as Judged
from verify_service.judging import Sampler, judge_each, matcher_of, rule_problem, shaper_of, told
from verify_service.kv_block_pool import Slots
from verify_service.kv_cache_manager import KVCacheManager
from verify_service.loading import load_parts
from verify_service.model_runner import ModelRunner, Runner
from verify_service.packed_step import PackedStep, PromptChunk
from verify_service.sequences import VerifyItem, check_prompt, invalid, stale, unknown
from verify_service.under_way import UnderWay


class VerifyEngine:
    """One target, one pool of pages, the sequences that live in it."""

    def __init__(
        self,
        *,
        target: LoadedTarget,
        runner: Runner,
        projection: Projection | None,
        config: VerifyConfig,
        version: str,
        sampler: Sampler = judge_each,
    ) -> None:
        self.target = target
        self.config = config
        self.fingerprint = version
        self.projection = projection
        self._runner = runner
        pages = config.kv_tokens // config.page_size
        store = None
        if projection is not None:
            store = FeatureStore(pages * config.page_size, projection, config.feature_dtype)
        self._holdings = KVCacheManager(
            pages=pages,
            page_size=config.page_size,
            most=config.max_sequences,
            store=store,
            keep_prefixes=config.prefix_cache and runner.path == "paged",
            copy=self._copy if isinstance(runner, ModelRunner) and runner.likes_rows else None,
        )
        self._grammars = Grammars(target.folder, target.vocab_size, target.stop_ids)
        self._step = PackedStep(runner, self._holdings, sampler)
        self._batches = Batches(self._step, self._holdings, config, target.vocab_size, runner.device, runner.release)

    @staticmethod
    def load(config: VerifyConfig, sampler: Sampler = judge_each) -> VerifyEngine:
        """Loads the weights and chooses the attention path; call it on the thread that will own the device."""
        parts = load_parts(config)
        return VerifyEngine(
            target=parts.target,
            runner=parts.runner,
            projection=parts.projection,
            config=config,
            version=parts.fingerprint,
            sampler=sampler,
        )

    # -- what it is -------------------------------------------------------------------------

    @property
    def attention_path(self) -> str:
        return self._runner.path

    @property
    def attention_reason(self) -> str:
        """Why the path is not paged; empty where it is."""
        return self._runner.reason

    @property
    def make(self) -> str:
        """What else decides how long a pass takes: lean layers, weight forms, kernels."""
        return self._runner.make

    @property
    def device(self) -> torch.device:
        return self._runner.device

    @property
    def dtype(self) -> str:
        return str(self.target.model.dtype).removeprefix("torch.")

    @property
    def feature_width(self) -> int:
        """Width of a feature row; 0 without a projection."""
        return self._holdings.store.width if self._holdings.store is not None else 0

    @property
    def held(self) -> Held:
        return self._holdings.held

    # -- life of a sequence -----------------------------------------------------------------

    def open(
        self,
        cursor: Cursor,
        law: SamplingParams,
        reserve_tokens: int,
        keep_features: bool,
        *,
        owner: int = 0,
        token_ids: Sequence[int] | None = None,
        salt: str = "",
        scores: int | None = None,
    ) -> Refusal | None:
        """Makes room for the prompt; cursor.committed_len tokens will follow in chunks, less those that are `spared`.

        A higher epoch takes the place of a lower one.
        """
        state = self._holdings.states.get(cursor.sequence)
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
        if self._batches.busy(cursor.sequence):
            return Refusal(RefusalReason.NO_PAGES, "what was held under this number is in a pass that has not ended")
        if state is not None:
            self._drop(cursor.sequence)
        if self._runner.rotation is not None:  # keys that were turned in another way are of no use
            salt += f"\0{self._runner.rotation.of(law.prompt_len or cursor.committed_len)}"
        admitted = self._holdings.admit(
            cursor,
            law,
            reserve_tokens,
            keep_features=keep_features,
            owner=owner,
            token_ids=token_ids,
            salt=salt,
            scores=None if scores is None else min(scores, self.target.vocab_size),
        )
        return admitted if isinstance(admitted, Refusal) else None

    def spared(self, sequence: int, epoch: int, *, rows: bool) -> tuple[int, FeatureRows | None]:
        """Leading tokens of the prompt that were found computed, and their feature rows if they are wanted."""
        state = self._holdings.states.get(sequence)
        if state is None or state.epoch != epoch or not state.spared:
            return 0, None
        return state.spared, self._holdings.rows(state, 0, state.spared) if rows and state.keep_features else None

    def prefill_chunk(
        self, sequence: int, token_ids: Sequence[int], *, epoch: int | None = None, wants_rows: bool = True
    ) -> FeatureRows | Refusal | None:
        """Runs the next tokens of an opened sequence; returns their feature rows, None when nobody needs them."""
        state = self._holdings.states.get(sequence)
        if state is None or (epoch is not None and epoch != state.epoch):
            return unknown(Cursor(sequence, epoch or 0, 0, 0))
        start, stop = state.cached, state.cached + len(token_ids)
        if stop > state.prompt_len or not len(token_ids):
            return invalid(f"token_ids: {len(token_ids)} tokens after {start} of {state.prompt_len}")
        return self._step.run([], [PromptChunk(state, token_ids, wants_rows)]).chunk_rows[0]

    def compile(self, constraint: Constraint, tenant: str) -> Future[Grammar]:
        """The form of an answer, compiled on another thread; see `Engine`."""
        return self._grammars.compile(constraint, tenant)

    def first_token(self, sequence: int, *, epoch: int | None = None, grammar: Grammar | None = None) -> int | Refusal:
        """Draws the anchor that follows a finished prefill."""
        state = self._holdings.states.get(sequence)
        logits = self._holdings.last_logits.pop(sequence, None)
        if state is None or logits is None or (epoch is not None and epoch != state.epoch):
            return unknown(Cursor(sequence, epoch or 0, 0, 0))
        if state.broken is not None:
            return state.broken
        cursor = Cursor(sequence, state.epoch, 0, state.committed_len)
        matcher = matcher_of(state, grammar)
        if isinstance(matcher, Refusal):
            return matcher
        if matcher is not None:
            logits = logits.unsqueeze(0).clone()
            mask(logits, [(0, matcher.masks(()))])
            logits = logits[0]
        try:
            anchor = draw_first_token(logits, state.law, cursor, shaper_of(state))
        except FloatingPointError:
            return Refusal(RefusalReason.INTERNAL, "the target's logits are not numbers")
        state.anchor_logprobs = told(state.law, logits.unsqueeze(0), [anchor])
        if matcher is not None:
            matcher.accept([anchor])
        state.token_ids.append(anchor)
        state.matcher, state.anchored = matcher, True
        return anchor

    def anchor_logprobs(self, sequence: int) -> tuple[ScoredToken, ...]:
        """Of the token that `first_token` drew; empty when its law asks for none."""
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
        self._batches.forget(owner)
        return len(mine)

    def grow(self, sequence: int, epoch: int, committed_len: int, slots: int) -> int | None:
        """Pages for an anchor and as many of `slots` more tokens as there are any for; how many."""
        state = self._holdings.states.get(sequence)
        if state is None or state.epoch != epoch:
            return None
        return self._holdings.grow_within(state, committed_len, slots)

    def kept_rows(self, spans: Sequence[RowSpan]) -> KeptRows:
        """Rows of committed tokens, in one piece."""
        return self._holdings.kept_rows(spans)

    def features(self, cursor: Cursor, start: int) -> FeatureRows | Refusal:
        """Kept rows of positions start .. committed_len - 2, to fill a drafter with."""
        state = self._holdings.states.get(cursor.sequence)
        if state is None or state.epoch != cursor.epoch:
            return unknown(cursor)
        if not state.keep_features:
            return invalid("no feature rows are kept for this sequence")
        if cursor.committed_len > state.committed_len or not state.anchored:
            return stale(state, f"committed_len {cursor.committed_len} was claimed, {state.committed_len} is here")
        # A round may have finished since the command was sent; what it added travels on its own.
        stop = max(cursor.committed_len - 1, 0)
        return (
            self._holdings.rows(state, start, stop)
            if start <= stop
            else invalid(f"from_position: {start} is past {stop}")
        )

    # -- rounds -----------------------------------------------------------------------------

    def verify(self, items: Sequence[VerifyItem]) -> list[Verdict | Refusal]:
        """The outcomes of `judge_cohort` alone."""
        return self.judge_cohort(items).outcomes

    def judge_cohort(self, items: Sequence[VerifyItem]) -> Judged:
        """One packed pass over every item that fits, then the rule. Bad rows are refused, the others do not notice."""
        return self._batches.judge(items)

    def begin(self, items: Sequence[VerifyItem]) -> UnderWay:
        """The same in three parts: this one, `run` of what it gives, on any thread, and `end`."""
        return self._batches.begin(items)

    def begin_prefill(self, *, short: bool = False, owner: int = 0) -> UnderWay | None:
        """`prefill_next` in three parts."""
        return self._batches.begin_prefill(short=short, owner=owner)

    def end(self, step: UnderWay) -> Judged:
        """What came of a step that has run."""
        return self._batches.end(step)

    def line_up(self, prefill: PromptPrefill) -> None:
        """The rest of an opened sequence's prompt will run, chunk by chunk, in rounds or between them."""
        self._batches.line_up(prefill)

    def prefill_next(self, *, short: bool = False, owner: int = 0) -> Progress | None:
        """A chunk of the owner's first prompt in line, in a pass of its own; None when none waits."""
        return self._batches.prefill_next(short=short, owner=owner)

    def take_news(self, owner: int = 0) -> Progress | None:
        """The oldest news of an owner's prompt that rode in a round, or whose pass failed, once."""
        return self._batches.take_news(owner)

    # -- for timing -------------------------------------------------------------------------

    def pretend(self, cursor: Cursor, law: SamplingParams, reserve_tokens: int) -> Refusal | None:
        """Opens a sequence as if cursor.committed_len tokens had been run and an anchor drawn. For timing only."""
        if (problem := self.open(cursor, law, reserve_tokens, keep_features=True)) is not None:
            return problem
        state = self._holdings.states[cursor.sequence]
        state.token_ids = [0] * (cursor.committed_len + 1)
        state.cached = cursor.committed_len
        state.anchored = True
        self._runner.fill(cursor.sequence, self._holdings.slots(state, 0, state.cached), state.cached)
        return None

    def rewind(self, sequence: int, cached: int) -> None:
        """Takes committed tokens back, so that the same step can be timed again. For timing only."""
        state = self._holdings.states[sequence]
        state.cached = cached
        state.token_ids = [0] * (cached + 1)
        state.round = -1

    def forget_all(self) -> None:
        """Frees every sequence and the memory behind them. For use before serving only."""
        for sequence in list(self._holdings.states):
            self._drop(sequence)
        self._holdings.prefixes.clear()
        self._runner.reset()

    def _drop(self, sequence: int) -> None:
        self._batches.drop(self._holdings.states[sequence])

    def _copy(self, source: Slots, target: Slots) -> None:
        """Keys and values of pages that no pass writes, into pages that none reads yet."""
        assert isinstance(self._runner, ModelRunner)
        with self._step.device:
            self._runner.copy(source, target)
