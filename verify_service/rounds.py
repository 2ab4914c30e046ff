"""Rounds and prompts on one device: who is in a packed pass, and with what.

A step first asks for the pages of everybody in it, the oldest sequence first, then acts; who gets none is refused and
stays where it stood. Prompts wait in one line, first come, first served: the next chunk of the first rides in the pass
of a cohort, so that rounds go on and the prompt does too, or has a pass of its own while nobody decodes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence

import torch

from dspark.types import Cursor, Refusal, RefusalReason, Verdict
from verify_service.config import VerifyConfig
from verify_service.feature_store import FeatureRows
from verify_service.holdings import Holdings
from verify_service.interface import Judged, Prefill, Progress
from verify_service.packed_step import Chunk, PackedStep, Stepped
from verify_service.sequences import VerifyItem, check_item, invalid, unknown

RIDE_ALONG = {"cpu": 64, "cuda": 512}  # prompt tokens in a round, where the configuration leaves it to the device


class Rounds:
    """The steps of one engine."""

    def __init__(
        self, step: PackedStep, holdings: Holdings, config: VerifyConfig, vocab_size: int, device: torch.device
    ) -> None:
        self.line: deque[Prefill] = deque()  # prompts on their way in
        self.failed: deque[Prefill] = deque()  # prompts whose pass failed, for whoever waits for them
        self._step, self._holdings, self._config = step, holdings, config
        self._vocab_size = vocab_size
        self._ride_along = config.step_prefill_tokens or RIDE_ALONG.get(device.type, 512)

    def prefill_next(self, *, short: bool) -> Progress | None:
        """A chunk of the first prompt in line, in a pass of its own; None when nobody waits."""
        budget = self._ride_along if short else self._config.prefill_chunk
        return self._progress(self.line[0], budget, [])[0] if self.line else None

    def judge(self, items: Sequence[VerifyItem]) -> Judged:
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
            state = self._holdings.states.get(item.cursor.sequence)
            answer = check_item(state, item, vocab_size=self._vocab_size)
            if answer is None:
                runnable.append(index)
            else:
                outcomes[index] = answer
                replayed += isinstance(answer, Verdict)
        given = self._ask(items, runnable, outcomes)
        tokens = prefill_tokens = 0
        progress: list[Progress] = []
        for batch in self._batches(given):
            prefill = self.line[0] if self.line and not progress else None
            if prefill is None:
                stepped = self._step.run([given[i] for i in batch], None)
            else:
                made, stepped = self._progress(prefill, self._ride_along, [given[i] for i in batch])
                progress.append(made)
                prefill_tokens += made.tokens
            tokens += stepped.tokens
            outcomes |= dict(zip(batch, stepped.outcomes, strict=True))
            features |= dict(zip(batch, stepped.features, strict=True))
        return Judged(
            outcomes=[outcomes[i] for i in range(len(items))],
            features=[features.get(i) for i in range(len(items))],
            replayed=replayed,
            tokens=tokens,
            forward_ns=time.perf_counter_ns() - began,
            near_ties=self._step.take_near_ties(),
            prefill_tokens=prefill_tokens,
            progress=progress,
        )

    def _ask(
        self, items: Sequence[VerifyItem], runnable: Sequence[int], outcomes: dict[int, Verdict | Refusal]
    ) -> dict[int, VerifyItem]:
        """Pages for everybody, the oldest sequence first; those who get them by index, in the order of the items.

        Invariant 2, no peeking: a prefix that finds too few pages is cut to those there are, and only an anchor
        without one is refused. Refusing for the length of the prefix, which depends on its own tokens by way of later
        confidences, would make what is drawn instead depend on them too.
        """
        given: dict[int, VerifyItem] = {}
        for index in sorted(runnable, key=lambda i: items[i].cursor.sequence):
            item = items[index]
            state = self._holdings.states[item.cursor.sequence]
            slots = self._holdings.grow_within(state, state.cached + 1, len(item.draft_ids))
            if slots is None:
                outcomes[index] = Refusal(RefusalReason.OUT_OF_PAGES, f"no page is left for token {state.cached + 1}")
            else:
                given[index] = item if slots == len(item.draft_ids) else item.prefix(slots)
        return dict(sorted(given.items()))

    def _batches(self, items: Mapping[int, VerifyItem]) -> list[list[int]]:
        """Indices of items by pass."""
        batches: list[list[int]] = []
        size = 0
        for index, item in items.items():
            count = 1 + len(item.draft_ids)
            if not batches or size + count > self._config.max_batch_tokens:
                batches.append([])
                size = 0
            batches[-1].append(index)
            size += count
        return batches

    def _progress(self, prefill: Prefill, budget: int, items: Sequence[VerifyItem]) -> tuple[Progress, Stepped]:
        """One pass with the next chunk of a prompt behind these items. A prompt that cannot go on leaves the line."""
        state = self._holdings.states.get(prefill.sequence)
        if state is None or state.epoch != prefill.epoch or state.cached >= state.prompt_len:
            self._leave(prefill)
            gone = unknown(Cursor(prefill.sequence, prefill.epoch, 0, 0))
            return Progress(prefill, None, 0, False, gone), self._step.run(items, None)
        ids = prefill.token_ids[state.cached : state.cached + budget]
        try:
            stepped = self._step.run(items, Chunk(state, ids, prefill.wants_rows))
        except BaseException:
            self._leave(prefill)  # whatever it was, it does not come again with the next round
            self.failed.append(prefill)
            raise
        done = state.cached == state.prompt_len
        if done:
            self._leave(prefill)
        return Progress(prefill, stepped.chunk_rows, len(ids), done), stepped

    def _leave(self, prefill: Prefill) -> None:
        """It is done, or cannot go on."""
        if prefill in self.line:
            self.line.remove(prefill)
