"""What engines with KV blocks have in common: sequences, their blocks and rows, prompts in line, batches of rounds.

Around a `BatchRunner`: a target that runs (`engine`) or one that sleeps (`synthetic`). No torch. Everything happens on
the one thread that owns the device, but for `run` of a step under way. A command about one sequence is checked before
anything is computed, so a bad row never touches its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

from dspark.pages import Held
from dspark.rounds.events import OrderRow
from dspark.types import Cursor, Refusal, RefusalReason, SamplingParams, ScoredPrompt, ScoredToken
from verify_service.batches import Batches
from verify_service.config import VerifyConfig
from verify_service.interface import FeatureRun, Judged, KeptRows, Progress, PromptPrefill, TargetFacts
from verify_service.kv_cache_manager import KVCacheManager
from verify_service.sequences import VerifyItem, check_prompt, invalid, stale, unknown
from verify_service.under_way import UnderWay


class EngineCore:
    """One pool of KV blocks, the sequences that live in it."""

    target: TargetFacts

    def __init__(self, config: VerifyConfig, version: str, holdings: KVCacheManager, batches: Batches) -> None:
        self.config, self.fingerprint = config, version
        self._holdings, self._batches = holdings, batches

    @property
    def feature_width(self) -> int:
        """Width of a feature row; 0 without a projection."""
        return self._holdings.store.width if self._holdings.store is not None else 0

    @property
    def held(self) -> Held:
        return self._holdings.held

    def _unserved(self, params: SamplingParams, scores: int | None) -> Refusal | None:
        """Why nobody here can draw by these parameters, or tell so many of a prompt's likeliest tokens."""
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
        if (problem := problem or self._unserved(params, scores)) is not None:
            return problem
        if self._batches.busy(cursor.sequence):
            return Refusal(RefusalReason.NO_PAGES, "what was held under this number is in a pass that has not ended")
        if state is not None:
            self._drop(cursor.sequence)
        admitted = self._holdings.admit(
            cursor,
            params,
            reserve_tokens,
            keep_features=keep_features,
            owner=owner,
            token_ids=token_ids,
            salt=self._salted(salt, params.prompt_len or cursor.committed_len),
            scores=None if scores is None else min(scores, self.target.vocab_size),
        )
        return admitted if isinstance(admitted, Refusal) else None

    def busy(self, sequence: int) -> bool:
        """Whether a pass that has not ended holds what has, or had, this number: it cannot be opened until then."""
        return self._batches.busy(sequence)

    def spared(self, sequence: int, epoch: int) -> int:
        """Leading tokens of the prompt that were found computed."""
        state = self._holdings.states.get(sequence)
        return 0 if state is None or state.epoch != epoch else state.spared

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
        self._batches.forget(owner)
        return len(mine)

    def grow(self, sequence: int, epoch: int, committed_len: int, slots: int) -> int | None:
        """Pages for an anchor and as many of `slots` more tokens as there are any for; how many."""
        state = self._holdings.states.get(sequence)
        if state is None or state.epoch != epoch:
            return None
        return self._holdings.grow_within(state, committed_len, slots)

    def kept_rows(self, asked: Sequence[OrderRow]) -> KeptRows:
        """Rows that travel with an order, in one piece, and masks."""
        kept = self._holdings.kept_rows(asked)
        masks = [self._first_mask(row.sequence, row.epoch) for row in asked]
        return kept._replace(masks=masks) if any(masks) else kept

    def _first_mask(self, sequence: int, epoch: int) -> bytes:
        """What the form of its answer lets come next; empty where it has none."""
        state = self._holdings.states.get(sequence)
        if state is None or state.epoch != epoch or state.matcher is None or state.matcher.too_slow:
            return b""
        try:
            return state.matcher.masks(())[:1].tobytes()
        except Exception:  # its next pass meets the same, and says so
            return b""

    def features(self, cursor: Cursor, start: int) -> FeatureRun | Refusal:
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

    def _drop(self, sequence: int) -> None:
        self._batches.drop(self._holdings.states[sequence])
