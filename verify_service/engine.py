"""The verify engine with a real target: sampling, grammars, feature rows, and hooks for timing."""

from __future__ import annotations

from concurrent.futures import Future

import torch

from dspark.decoding.acceptance import first_token as draw_first_token
from dspark.decoding.masking import mask
from dspark.decoding.shaping import params_problem
from dspark.model.checkpoint import LoadedTarget
from dspark.types import Constraint, Cursor, Refusal, RefusalReason, SamplingParams
from verify_service.batch_runner import Grammar
from verify_service.config import VerifyConfig
from verify_service.engine_core import EngineCore
from verify_service.feature_store import FeatureStore
from verify_service.grammars.grammars import Grammars
from verify_service.kv_cache_manager import KVCacheManager
from verify_service.loading import VerifierParts, load_parts
from verify_service.model_runner import ModelRunner
from verify_service.packed_runner import PackedRunner
from verify_service.sampler import Sampler, judge_each, matcher_of, shaper_of, told
from verify_service.sequences import CachedSequence, invalid, unknown
from verify_service.state_cache import StateCache
from verify_service.stateful import StatefulRunner


class VerifyEngine(EngineCore):
    """An engine that runs a target model."""

    def __init__(self, parts: VerifierParts, sampler: Sampler = judge_each) -> None:
        target, runner, projection, version, config = parts
        self.target: LoadedTarget = target
        self.projection = projection.fingerprint if projection is not None else ""
        self._runner = runner
        self.attention_path, self.attention_reason = runner.path, runner.reason
        self.device: torch.device = runner.device
        self.dtype = str(target.model.dtype).removeprefix("torch.")
        pages = config.kv_tokens // config.page_size
        store = None
        if projection is not None:
            store = FeatureStore(pages * config.page_size, projection, config.feature_dtype)
        # Whether a prompt reuses what was computed for an earlier one with the same beginning.
        self.shares_prefixes = config.prefix_cache and runner.shares_prefixes
        # such a runner gains by runs of free pages: half of all are not kept for prefixes
        scarce = isinstance(runner, ModelRunner) and runner.likes_rows
        kv_cache = KVCacheManager(
            pages=pages,
            page_size=config.page_size,
            most=config.max_sequences,
            store=store,
            kept=pages // (1 + scarce) if self.shares_prefixes else 0,
        )
        if self.shares_prefixes and isinstance(runner, StatefulRunner):
            kv_cache.prefixes.states = StateCache(runner, config.state_cache_mb << 20)
        self._grammars = Grammars(target.folder, target.vocab_size, target.stop_ids)
        super().__init__(config, version, kv_cache, PackedRunner(runner, kv_cache, sampler, store))

    @staticmethod
    def load(config: VerifyConfig, sampler: Sampler = judge_each) -> VerifyEngine:
        """Loads the weights and chooses the attention path; call it on the thread that will own the
        device."""
        return VerifyEngine(load_parts(config), sampler)

    def close(self) -> None:
        """Ends the other ranks of a target over several devices."""
        if isinstance(self._runner, ModelRunner) and self._runner.others is not None:
            self._runner.others.close()

    # -- facts -------------------------------------------------------------------------

    @property
    def make(self) -> str:
        """Names what else determines the time of a pass: lean layers, weight forms, kernels."""
        return self._runner.make

    # -- life of a sequence -----------------------------------------------------------------

    def _unserved(self, params: SamplingParams, scores: int | None) -> Refusal | None:
        problem = params_problem(params, self.target.vocab_size)
        return None if problem is None else invalid(f"sampling.{problem}")

    def _salted(self, salt: str, prompt_len: int) -> str:
        rotation = self._runner.rotation
        # keys under another rotation cannot be reused
        return salt if rotation is None else f"{salt}\0{rotation.of(prompt_len)}"

    def compile(self, constraint: Constraint, salt: str) -> Future[Grammar | Refusal]:
        return self._grammars.compile(constraint, salt)

    def _drawn_anchor(self, state: CachedSequence, grammar: Grammar | None) -> int | Refusal:
        logits, state.last_logits = state.last_logits, None
        if logits is None:  # a draw has failed before
            return unknown(Cursor(state.sequence, state.epoch, 0, 0))
        cursor = Cursor(state.sequence, state.epoch, 0, state.committed_len)
        matcher = matcher_of(state, grammar)
        if isinstance(matcher, Refusal):
            return matcher
        if matcher is not None:
            logits = logits.unsqueeze(0).clone()
            mask(logits, [(0, matcher.masks(()))])
            logits = logits[0]
        try:
            anchor = draw_first_token(logits, state.params, cursor, shaper_of(state))
        except FloatingPointError:
            self._kv_cache.forget_prefix(state)
            return Refusal(RefusalReason.INTERNAL, "the target's logits are not numbers")
        state.anchor_logprobs = told(state.params, logits.unsqueeze(0), [anchor])
        if matcher is not None:
            matcher.accept([anchor])
        state.matcher = matcher
        return anchor

    # -- for timing -------------------------------------------------------------------------

    def pretend(
        self, cursor: Cursor, params: SamplingParams, reserve_tokens: int
    ) -> Refusal | None:
        """Opens a sequence as if cursor.committed_len tokens had run and an anchor were drawn; for
        timing only."""
        prompt = [0] * cursor.committed_len
        problem = self.open(
            cursor, params, reserve_tokens, keep_features=True, token_ids=prompt, salt=None
        )
        if problem is not None:
            return problem
        state = self._kv_cache.states[cursor.sequence]
        state.token_ids = [*prompt, 0]
        state.cached = cursor.committed_len
        state.anchored = True
        self._runner.fill(state, self._kv_cache.slots(state, 0, state.cached), state.cached)
        return None

    def rewind(self, sequence: int, cached: int) -> None:
        """Cuts a sequence back to `cached` tokens, to time the same step again; for timing only."""
        state = self._kv_cache.states[sequence]
        state.cached = cached
        state.token_ids = [0] * (cached + 1)
        state.round = -1

    def forget_all(self) -> None:
        """Frees every sequence and the memory behind them. For use before serving only."""
        for state in list(self._kv_cache.states.values()):
            self._drop(state)
        self._kv_cache.prefixes.clear()
        self._runner.reset()

    def record(self) -> None:
        """Records GPU graphs for the pass sizes of rounds; called before the first request."""
        if isinstance(self._runner, ModelRunner):
            self._runner.record(self.config.max_sequences, self.config.max_batch_tokens)
