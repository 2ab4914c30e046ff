"""Prefill of one control stream: opens sequences, runs prompts in chunks, draws the first token.

Runs in turns (see `round_driver`). Chunks ride in the passes of rounds. While no sequence decodes,
one queued prompt after the other has passes of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from dspark.rounds.control import Admission, PrefillStats
from dspark.types import Cursor, Refusal, ScoredToken, scores_problem
from verify_service.batch_runner import Grammar
from verify_service.engine_core import EngineCore
from verify_service.running_step import RunningStep
from verify_service.sequences import CachedSequence, failed, invalid

IDLE_S = 0.02  # without a round, after which no sequence counts as decoding
LIVELY_S = 0.5  # after the last round, while another may begin soon: chunks stay short


class FinishedPrompt(NamedTuple):
    """A finished prompt: its anchor with statistics, or why it was refused."""

    sequence: int
    epoch: int
    anchor: int | Refusal
    tokens: int = 0  # of the prompt
    started: PrefillStats = PrefillStats()
    logprobs: Sequence[ScoredToken] = ()


class _Prompt(NamedTuple):
    admission: Admission
    grammar: Future[Grammar | Refusal] | None  # None without a constraint

    def ready(self, state: CachedSequence | None) -> bool:
        """Whether its answer can begin, or never will. state: of its sequence, None if it is
        gone."""
        if state is None or state.broken is not None:
            return True
        if self.grammar is None:
            return state.prefilled
        return self.grammar.done() and (
            state.prefilled or isinstance(self.grammar.result(), Refusal)
        )


class Prompts:
    """The prompts of one owner."""

    def __init__(self, engine: EngineCore, owner: int, wake: Callable[[], None]) -> None:
        """wake: makes `collect` be called soon; any thread may call it."""
        self._engine, self._owner, self._wake = engine, owner, wake
        self._waiting: dict[tuple[int, int], _Prompt] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, admission: Admission) -> Refusal | None:
        """Opens a sequence and queues its prompt; returns a refusal if that fails."""
        admit, ids = admission.admit, admission.token_ids
        cursor = Cursor(admit.sequence, admit.epoch, 0, len(ids))
        scores = admission.prompt_logprobs
        if scores is not None and (wrong := scores_problem(len(ids), scores)) is not None:
            return invalid(f"sampling.prompt_logprobs: {wrong}")
        try:
            refusal = self._engine.open(
                cursor,
                admission.params,
                admission.longest,
                admission.keep_rows or admit.drafter > 0,
                owner=self._owner,
                token_ids=ids,
                salt=admission.cache_salt,
                scores=scores,
                repeatable=admission.repeatable,
            )
        except Exception as error:
            return failed(cursor.sequence, error)
        if refusal is not None:
            return refusal
        grammar = None
        if admission.params.constraint is not None:
            grammar = self._engine.compile(admission.params.constraint, admission.cache_salt)
            grammar.add_done_callback(lambda _: self._wake())
        self._waiting[cursor.sequence, cursor.epoch] = _Prompt(admission, grammar)
        return None

    def call_back(self, sequence: int, epoch: int) -> bool:
        """Cancels a prefill; returns False if it is not running."""
        if self._waiting.pop((sequence, epoch), None) is None:
            return False
        self._engine.release(sequence, epoch)
        return True

    def chunk_at(self, last_round: float) -> float | None:
        """When the next chunk gets a pass of its own, unless it rides in a round before; None
        without one."""
        states = (self._engine.find(*key) for key in self._waiting)
        able = any(state is None or not state.prefilled for state in states)
        return last_round + IDLE_S if able else None

    def begin_chunk(self, last_round: float) -> RunningStep | None:
        """Begins a pass for a chunk; None if there is none. last_round: end of the last round, in
        monotonic seconds. Raises what the engine raises."""
        short = time.monotonic() - last_round < LIVELY_S
        return self._engine.begin_prefill(short=short, owner=self._owner)

    def collect(self) -> Iterator[FinishedPrompt]:
        """Yields prompts that ended since the last call, in any pass; those that cannot go on at
        once."""
        for key, prompt in list(self._waiting.items()):
            state = self._engine.find(*key)
            if prompt.ready(state):
                del self._waiting[key]
                yield self._begin_answer(*key, prompt, state)

    def _begin_answer(
        self, sequence: int, epoch: int, prompt: _Prompt, state: CachedSequence | None
    ) -> FinishedPrompt:
        anchor: int | Refusal
        future = prompt.grammar
        grammar = future.result() if future is not None and future.done() else None
        try:
            if isinstance(grammar, Refusal):
                anchor = Refusal(grammar.reason, f"constraint: {grammar.message}")
            else:
                anchor = self._engine.first_token(sequence, epoch=epoch, grammar=grammar)
        except Exception as error:  # a bug at one prompt does not affect others
            anchor = failed(sequence, error)
        if isinstance(anchor, Refusal) or state is None:
            self._engine.release(sequence, epoch)
            return FinishedPrompt(sequence, epoch, anchor)
        scored = state.take_scores(state.scores) if state.scores is not None else None
        tokens, started = len(prompt.admission.token_ids), PrefillStats(state.spared, scored)
        return FinishedPrompt(sequence, epoch, anchor, tokens, started, state.anchor_logprobs)
