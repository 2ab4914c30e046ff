"""Rounds and prompts on one device: who is in a packed pass, and with what.

A step first asks for the pages of everybody in it, the oldest sequence first, then acts; who gets none is refused and
stays where it stood. Prompts wait in one line, first come, first served: the next chunks of the first, as many as a
token budget holds, ride in the pass of a cohort, so that rounds go on and prompts do too; while nobody decodes the
first has passes of its own. A prompt is in one pass at a time. What a step under way may count on is in `under_way`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from dspark.types import Cursor, Refusal, RefusalReason, Verdict
from verify_service.batch_runner import BatchRunner, PreparedBatch, PromptChunk
from verify_service.config import VerifyConfig
from verify_service.interface import Judged, Progress, PromptPrefill
from verify_service.kv_cache_manager import KVCacheManager
from verify_service.sequences import CachedSequence, VerifyItem, check_item, failed, invalid, unknown
from verify_service.under_way import Batch, UnderWay

RIDE_ALONG = {"cpu": 64, "cuda": 512}  # prompt tokens in a round, where the configuration leaves it to the device
SCORED = 256  # tokens of a prompt in a pass, where each of them brings logits over the whole vocabulary


class Batches:
    """The steps of one engine. forget_keys: of a sequence, to whoever keeps keys and values beside the pages."""

    def __init__(
        self,
        step: BatchRunner,
        holdings: KVCacheManager,
        config: VerifyConfig,
        vocab_size: int,
        device: str,
        forget_keys: Callable[[int], None],
    ) -> None:
        self.line: deque[PromptPrefill] = deque()  # prompts on their way in
        self._news: dict[int, deque[Progress]] = {0: deque()}  # of prompts that rode in rounds or failed, by owner
        self._step, self._holdings, self._config = step, holdings, config
        self._vocab_size, self._forget_keys = vocab_size, forget_keys
        self._busy: dict[int, CachedSequence] = {}  # those in steps under way
        self._leaving: dict[int, CachedSequence] = {}  # of them, those that nobody wants any more
        self._ride_along = config.step_prefill_tokens or RIDE_ALONG.get(device, 512)

    def line_up(self, prefill: PromptPrefill) -> None:
        """At the end of the line."""
        self._news.setdefault(prefill.owner, deque())
        self.line.append(prefill)

    def prefill_next(self, *, short: bool, owner: int) -> Progress | None:
        """A chunk of the owner's first prompt in line, in a pass of its own; None when none waits."""
        step = self.begin_prefill(short=short, owner=owner)
        if step is None:
            return self.take_news(owner)  # of one that could not go on
        step.run()
        _, progress = self._ended(step)
        if step.failure is not None:
            self._tell(progress)
            raise step.failure
        return progress[0]

    def begin_prefill(self, *, short: bool, owner: int) -> UnderWay | None:
        """The same as a step under way; what it brings is news."""
        began = time.perf_counter_ns()
        first = [each for each in self.line if each.owner == owner and each.sequence not in self._busy][:1]
        riders = self._riders(first, self._ride_along if short else self._config.prefill_chunk)
        prepared, riders = self._prepare((), riders)
        if not riders:
            return None
        return self._under_way(UnderWay(self._step, (), {}, [Batch((), prepared)], riders, began))

    def take_news(self, owner: int) -> Progress | None:
        """The oldest of an owner's, once."""
        news = self._news.get(owner)
        return news.popleft() if news else None

    def forget(self, owner: int) -> None:
        """It takes no more news, and its prompts go no further: their numbers are anybody's now."""
        self._news.pop(owner, None)
        self.line = deque(each for each in self.line if each.owner != owner)

    def _tell(self, news: Sequence[Progress]) -> None:
        for each in news:
            waiting = self._news.get(each.prefill.owner)
            if waiting is not None:
                waiting.append(each)

    def judge(self, items: Sequence[VerifyItem]) -> Judged:
        """One packed pass over every item that fits, then the rule. Bad rows are refused, the others do not notice."""
        step = self.begin(items)
        step.run()
        judged = self.end(step)
        if step.failure is not None:
            raise step.failure  # rather the device than one of them
        return judged

    def begin(self, items: Sequence[VerifyItem]) -> UnderWay:
        """The same as a step under way."""
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
            answer = check_item(state, item, vocab_size=self._vocab_size)
            if answer is None and item.cursor.sequence in self._busy:
                answer = invalid("cursor: the sequence is in a pass that has not ended")
            if answer is None and state is not None:
                answer = self._step.unready(state)
            if answer is None:
                runnable.append(index)
            else:
                outcomes[index] = answer
        given = self._ask(items, runnable, outcomes)
        riders: list[tuple[PromptPrefill, PromptChunk]] = []
        batches: list[Batch] = []
        for indices in self._batches(given):
            riding: list[tuple[PromptPrefill, PromptChunk]] = []
            if not batches:
                waiting = [each for each in self.line if each.sequence not in self._busy]
                riding = self._riders(waiting, self._ride_along)
            prepared, riding = self._prepare([given[index] for index in indices], riding)
            riders += riding
            batches.append(Batch(indices, prepared))
        return self._under_way(UnderWay(self._step, items, outcomes, batches, riders, began))

    def end(self, step: UnderWay) -> Judged:
        """What came of a step that has run; of prompts in it, as news."""
        judged, progress = self._ended(step)
        self._tell(progress)
        return judged

    def _under_way(self, step: UnderWay) -> UnderWay:
        self._busy.update({state.sequence: state for state in step.states})
        return step

    def _ended(self, step: UnderWay) -> tuple[Judged, list[Progress]]:
        judged, progress = step.end()
        for each in progress:
            if each.done or each.problem is not None:
                self._leave(each.prefill)
        for state in step.states:
            del self._busy[state.sequence]
            if self._leaving.pop(state.sequence, None) is not None:
                self._free(state)
        return judged, progress

    def drop(self, state: CachedSequence) -> None:
        """Lets go of a sequence: of what it holds once no pass under way does."""
        if self._busy.get(state.sequence) is state:
            del self._holdings.states[state.sequence]
            self._leaving[state.sequence] = state
        else:
            self._free(state)

    def busy(self, sequence: int) -> bool:
        """Whether a step under way holds one of this number."""
        return sequence in self._busy

    def _free(self, state: CachedSequence) -> None:
        self._holdings.drop(state)
        self._forget_keys(state.sequence)

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

    def _riders(self, prefills: Sequence[PromptPrefill], budget: int) -> list[tuple[PromptPrefill, PromptChunk]]:
        """The next chunks of these prompts, `budget` tokens in all. A prompt that cannot go on leaves the line."""
        riders: list[tuple[PromptPrefill, PromptChunk]] = []
        for prefill in prefills:
            if budget <= 0:
                break
            state = self._holdings.states.get(prefill.sequence)
            if state is None or state.epoch != prefill.epoch or state.cached >= state.prompt_len:
                self._leave(prefill)
                why = unknown(Cursor(prefill.sequence, prefill.epoch, 0, 0))
                self._tell([Progress(prefill, 0, False, why)])
                continue
            start, most = state.cached, budget if state.scores is None else min(budget, SCORED)
            stop = self._holdings.chunk_end(state, most)
            ids = prefill.token_ids[start:stop]
            behind = () if state.scores is None else prefill.token_ids[start + 1 : start + 1 + len(ids)]
            riders.append((prefill, PromptChunk(state, ids, behind)))
            budget -= len(ids)
        return riders

    def _prepare(
        self, items: Sequence[VerifyItem], riders: list[tuple[PromptPrefill, PromptChunk]]
    ) -> tuple[PreparedBatch, list[tuple[PromptPrefill, PromptChunk]]]:
        """A pass, and the prompts that are in it. One that cannot be prepared goes no further and takes nobody along;
        of several, those behind the first wait for a later pass. Raises what is no prompt's fault."""
        try:
            return self._step.prepare(items, [chunk for _, chunk in riders]), riders
        except Exception as error:
            if not riders:
                raise
            without = self._step.prepare(items, ())
            if len(riders) > 1:
                return self._prepare(items, riders[:1])
            prefill = riders[0][0]
            self._leave(prefill)
            self._tell([Progress(prefill, 0, False, failed(prefill.sequence, error))])
            return without, []

    def _leave(self, prefill: PromptPrefill) -> None:
        """It is done, or cannot go on."""
        if prefill in self.line:
            self.line.remove(prefill)
