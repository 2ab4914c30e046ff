"""Prompts on their way into an engine: one line, first come, first served, and what came of their
chunks.

The next chunks of the first, as many as a token budget holds, ride in the pass of a cohort, so that
rounds go on and prompts do too; while nobody decodes the first has passes of its own.
"""

from __future__ import annotations

from collections.abc import Container

from dspark.types import Cursor
from verify_service.batch_runner import Progress, PromptChunk, PromptPrefill, Rider
from verify_service.kv_cache_manager import KVCacheManager
from verify_service.sequences import unknown

# tokens of a prompt in a pass, where each of them brings logits over the whole vocabulary
SCORED = 256


class PromptLine:
    """The prompts of all streams; each stream takes the news of its own."""

    def __init__(self, holdings: KVCacheManager) -> None:
        self._holdings = holdings
        self.prompts: list[PromptPrefill] = []
        self._news: list[Progress] = []  # that nobody has taken yet

    def add(self, prompt: PromptPrefill) -> None:
        """The rest of an opened sequence's prompt will run, chunk by chunk, in rounds or between
        them."""
        self.prompts.append(prompt)

    def forget(self, owner: int) -> None:
        """Its prompts go no further: their numbers are anybody's now."""
        self.prompts = [each for each in self.prompts if each.owner != owner]
        self._news = [each for each in self._news if each.prefill.owner != owner]

    def riders(self, budget: int, busy: Container[int], *, alone: int | None = None) -> list[Rider]:
        """The next chunks of prompts that are in no pass, `budget` tokens in all. A prompt that
        cannot go on leaves the line. alone: an owner, the first of whose prompts goes by itself."""
        able = [each for each in self.prompts if each.sequence not in busy]
        if alone is not None:
            able = [each for each in able if each.owner == alone][:1]
        riders: list[Rider] = []
        for prompt in able:
            if budget <= 0:
                break
            state = self._holdings.states.get(prompt.sequence)
            if state is None or state.epoch != prompt.epoch or state.cached >= state.prompt_len:
                self.tell(
                    Progress(prompt, problem=unknown(Cursor(prompt.sequence, prompt.epoch, 0, 0)))
                )
                continue
            start, most = state.cached, budget if state.scores is None else min(budget, SCORED)
            stop = self._holdings.chunk_end(state, most)
            ids = prompt.token_ids[start:stop]
            behind = (
                () if state.scores is None else prompt.token_ids[start + 1 : start + 1 + len(ids)]
            )
            riders.append((prompt, PromptChunk(state, ids, behind)))
            budget -= len(ids)
        return riders

    def tell(self, news: Progress) -> None:
        """What came of a prompt; one that is done, or cannot go on, leaves. Nobody hears of who has
        left before."""
        if news.prefill in self.prompts:
            self._news.append(news)
            if news.done or news.problem is not None:
                self.prompts.remove(news.prefill)

    def take_news(self, owner: int = 0) -> Progress | None:
        """The oldest news of an owner's prompts, once. They are not told with verdicts: prompts may
        be of other streams, and outlive the round's."""
        for at, each in enumerate(self._news):
            if each.prefill.owner == owner:
                return self._news.pop(at)
        return None
