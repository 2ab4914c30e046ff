"""The prefill queue of an engine, first come, first served, and the progress of its prompts.

Chunks of the first prompts, up to a token budget, ride in the pass of a cohort, so that rounds and
prompts advance together. While no sequence decodes, the first prompt has passes of its own.
"""

from __future__ import annotations

from collections.abc import Container

from dspark.types import Cursor
from verify_service.batch_runner import Progress, PromptChunk, PromptPrefill, Rider
from verify_service.kv_cache_manager import KVCacheManager
from verify_service.sequences import unknown

# most tokens of a scored prompt in a pass, as each needs logits over the whole vocabulary
SCORED = 256


class PromptLine:
    """Queued prompts of all control streams; each stream takes the progress of its own."""

    def __init__(self, holdings: KVCacheManager) -> None:
        self._holdings = holdings
        self.prompts: list[PromptPrefill] = []
        self._news: list[Progress] = []  # not taken yet

    def add(self, prompt: PromptPrefill) -> None:
        """Queues the prompt of an opened sequence, to run in chunks in rounds or between them."""
        self.prompts.append(prompt)

    def forget(self, owner: int) -> None:
        """Drops all prompts and progress of an owner, as their numbers may be used again."""
        self.prompts = [each for each in self.prompts if each.owner != owner]
        self._news = [each for each in self._news if each.prefill.owner != owner]

    def riders(self, budget: int, busy: Container[int], *, alone: int | None = None) -> list[Rider]:
        """The next chunks of prompts that are in no pass, `budget` tokens in all. A prompt whose
        sequence is gone is removed. alone: an owner; only its first prompt gets a chunk."""
        able = [
            each
            for each in self.prompts
            if each.sequence not in busy and alone in (None, each.owner)
        ]
        riders: list[Rider] = []
        for prompt in able:
            if budget <= 0 or (riders and alone is not None):
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
        """Stores the progress of a queued prompt and removes it if it is done or has failed.
        Progress of a removed prompt is ignored."""
        if news.prefill in self.prompts:
            self._news.append(news)
            if news.done or news.problem is not None:
                self.prompts.remove(news.prefill)

    def take_news(self, owner: int = 0) -> Progress | None:
        """Returns an owner's oldest progress, once. It is separate from verdicts, as prompts in a
        round may belong to other streams and outlive the round's own."""
        for at, each in enumerate(self._news):
            if each.prefill.owner == owner:
                return self._news.pop(at)
        return None
