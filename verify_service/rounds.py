"""Rounds and prompts on one device: who is in a packed pass, and with what.

A step first asks for the pages of everybody in it, the oldest sequence first, then acts; who gets none is refused and
stays where it stood. Prompts wait in one line, first come, first served: the next chunks of the first, as many as a
token budget holds, ride in the pass of a cohort, so that rounds go on and prompts do too; while nobody decodes the
first has passes of its own. A pass that fails is tried again with fewer, so that whoever spoils it is alone at last.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import structlog
import torch

from dspark.types import Cursor, Refusal, RefusalReason, Verdict
from verify_service.config import VerifyConfig
from verify_service.feature_store import FeatureRows
from verify_service.holdings import Holdings
from verify_service.interface import Judged, Prefill, Progress
from verify_service.judging import unready
from verify_service.packed_step import Chunk, PackedStep, PassFailed, Stepped
from verify_service.sequences import VerifyItem, check_item, invalid, unknown

log = structlog.get_logger("dspark.verify")

RIDE_ALONG = {"cpu": 64, "cuda": 512}  # prompt tokens in a round, where the configuration leaves it to the device
SCORED = 256  # tokens of a prompt in a pass, where each of them brings logits over the whole vocabulary
_FAILED = Refusal(RefusalReason.INTERNAL, "its pass failed; see the verifier's log")


class Rounds:
    """The steps of one engine."""

    def __init__(
        self, step: PackedStep, holdings: Holdings, config: VerifyConfig, vocab_size: int, device: torch.device
    ) -> None:
        self.line: deque[Prefill] = deque()  # prompts on their way in
        self._news: dict[int, deque[Progress]] = {0: deque()}  # of prompts that rode in rounds or failed, by owner
        self._step, self._holdings, self._config = step, holdings, config
        self._vocab_size = vocab_size
        self._ride_along = config.step_prefill_tokens or RIDE_ALONG.get(device.type, 512)

    def line_up(self, prefill: Prefill) -> None:
        """At the end of the line."""
        self._news.setdefault(prefill.owner, deque())
        self.line.append(prefill)

    def prefill_next(self, *, short: bool, owner: int) -> Progress | None:
        """A chunk of the owner's first prompt in line, in a pass of its own; None when none waits."""
        budget = self._ride_along if short else self._config.prefill_chunk
        first = [each for each in self.line if each.owner == owner][:1]
        return self._ride(first, budget, [])[0][0] if first else None

    def take_news(self, owner: int) -> Progress | None:
        """The oldest of an owner's, once."""
        news = self._news.get(owner)
        return news.popleft() if news else None

    def forget(self, owner: int) -> None:
        """It takes no more news."""
        self._news.pop(owner, None)

    def _tell(self, news: Sequence[Progress]) -> None:
        for each in news:
            waiting = self._news.get(each.prefill.owner)
            if waiting is not None:
                waiting.append(each)

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
            if answer is None and state is not None:
                answer = unready(state)
            if answer is None:
                runnable.append(index)
            else:
                outcomes[index] = answer
                replayed += isinstance(answer, Verdict)
        given = self._ask(items, runnable, outcomes)
        tokens = prefill_tokens = 0
        for place, batch in enumerate(self._batches(given)):
            riding = [] if place else list(self.line)
            for part, made, stepped in self._passes(batch, given, riding):
                self._tell(made)
                prefill_tokens += sum(each.tokens for each in made)
                tokens += stepped.tokens
                outcomes |= dict(zip(part, stepped.outcomes, strict=True))
                features |= dict(zip(part, stepped.features, strict=True))
        if given and all(outcomes[index] is _FAILED for index in given):
            raise PassFailed("every pass of a cohort failed")  # rather the device than one of them
        labels, draws = self._step.take_draws(items)
        return Judged(
            outcomes=[outcomes[i] for i in range(len(items))],
            features=[features.get(i) for i in range(len(items))],
            replayed=replayed,
            tokens=tokens,
            forward_ns=time.perf_counter_ns() - began,
            near_ties=self._step.take_near_ties(),
            prefill_tokens=prefill_tokens,
            labels=labels,
            draws=draws,
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

    def _passes(
        self, batch: Sequence[int], given: Mapping[int, VerifyItem], prefills: Sequence[Prefill]
    ) -> Iterator[tuple[Sequence[int], list[Progress], Stepped]]:
        """(indices of items, progress of prompts, what came of both) until every item was in a pass that did not fail,
        or failed alone. One of them, or their number, may have been more than the device could bear."""
        try:
            yield batch, *self._ride(prefills, self._ride_along, [given[i] for i in batch])
            return
        except PassFailed as error:
            log.error("pass.failed", sequences=len(batch), prompts=len(prefills), exc_info=error)
            parts = [batch] if prefills else _halves(batch)  # prompts that rode have left the line
        except Exception as error:  # a bug behind the pass: some may be committed and not told, so all begin anew
            log.error("step.failed", sequences=len(batch), prompts=len(prefills), exc_info=error)
            parts = []
        for part in parts:
            yield from self._passes(part, given, [])
        if not parts:
            yield batch, [], Stepped([_FAILED] * len(batch), [None] * len(batch), [], 0)

    def _ride(
        self, prefills: Sequence[Prefill], budget: int, items: Sequence[VerifyItem]
    ) -> tuple[list[Progress], Stepped]:
        """One pass with the next chunks of these prompts, `budget` tokens in all, behind these items.

        A prompt that cannot go on leaves the line.
        """
        gone: list[Progress] = []
        riders: list[tuple[Prefill, Chunk]] = []
        for prefill in prefills:
            if budget <= 0:
                break
            state = self._holdings.states.get(prefill.sequence)
            if state is None or state.epoch != prefill.epoch or state.cached >= state.prompt_len:
                self._leave(prefill)
                why = unknown(Cursor(prefill.sequence, prefill.epoch, 0, 0))
                gone.append(Progress(prefill, None, 0, False, why))
                continue
            start, most = state.cached, budget if state.scores is None else min(budget, SCORED)
            ids = prefill.token_ids[start : start + most]
            behind = () if state.scores is None else prefill.token_ids[start + 1 : start + 1 + len(ids)]
            riders.append((prefill, Chunk(state, ids, prefill.wants_rows, behind)))
            budget -= len(ids)
        try:
            stepped = self._step.run(items, [chunk for _, chunk in riders])
        except BaseException:
            for prefill, _ in riders:
                self._leave(prefill)  # whatever it was, it does not come again with the next round
            self._tell([*(Progress(prefill, None, 0, False, _FAILED) for prefill, _ in riders), *gone])
            raise
        made: list[Progress] = []
        for (prefill, chunk), rows in zip(riders, stepped.chunk_rows, strict=True):
            done = chunk.state.cached == chunk.state.prompt_len
            if done:
                self._leave(prefill)
            made.append(Progress(prefill, rows, len(chunk.token_ids), done))
        return [*gone, *made], stepped

    def _leave(self, prefill: Prefill) -> None:
        """It is done, or cannot go on."""
        if prefill in self.line:
            self.line.remove(prefill)


def _halves(batch: Sequence[int]) -> list[Sequence[int]]:
    """Nothing of a batch of one: it cannot be told apart from itself."""
    middle = len(batch) // 2
    return [batch[:middle], batch[middle:]] if middle else []
