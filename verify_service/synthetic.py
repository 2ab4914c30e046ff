"""A verifier without a target: the services of a real one around an engine that sleeps.

State, checks, pages and cursors are those of the real engine; what a pass says and how long it takes come from a file
(`dspark.synthetic`). Its tokens depend on the sequence's seed and their position alone, at every temperature and under
every rule, so an answer is the same whatever is drafted, verified or preempted. No torch.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np

from dspark.pages import Held, PageTable
from dspark.runtime.cost_store import Curve
from dspark.synthetic.law import SyntheticLaw
from dspark.synthetic.pace import Pace
from dspark.synthetic.rows import DTYPE, SyntheticRows, row_bytes
from dspark.synthetic.spec import SyntheticSpec, load_spec
from dspark.types import Constraint, Cursor, Refusal, RefusalReason, SamplingParams, ScoredPrompt, ScoredToken, Verdict
from dspark.wire.orders import PackedRows
from verify_service.config import VerifyConfig
from verify_service.grammars.grammars import GrammarUnsupported
from verify_service.interface import Grammar, Judged, KeptRows, Progress, PromptPrefill, RowSpan
from verify_service.sequences import CachedSequence, VerifyItem, check_item, check_prompt, invalid, stale, unknown
from verify_service.synthetic_step import Rider, SyntheticSequence, SyntheticStep

STEP_PREFILL = 512  # prompt tokens that ride in a round, where the configuration leaves it to the device


@dataclasses.dataclass(frozen=True, slots=True)
class SyntheticTarget:
    """What is announced of the target."""

    vocab_size: int
    context_length: int
    stop_ids: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class SyntheticProjection:
    """The drafter of the same file, and no other, understands the rows."""

    fingerprint: str


class SyntheticVerifyEngine:
    """Keeps `interface.Engine`."""

    attention_path = "synthetic"
    attention_reason = "no weights are here"
    device = "synthetic"
    dtype = "none"

    def __init__(self, spec: SyntheticSpec, config: VerifyConfig) -> None:
        self.spec = spec
        self.config = dataclasses.replace(config, target=config.target or "synthetic")
        self.fingerprint = f"synthetic-{spec.fingerprint}"
        self.target = SyntheticTarget(spec.vocabulary, spec.context_length)
        self.projection = SyntheticProjection(self.fingerprint)
        self.feature_width = spec.feature_width
        self.missed_ns = 0  # by which passes ended later than the file says, in all
        self._law = SyntheticLaw(spec)
        self._pace = Pace(spec.jitter, spec.seed)
        self._pages = PageTable(config.kv_tokens // config.page_size, config.page_size)
        self._sequences: dict[int, SyntheticSequence] = {}
        self._busy: dict[int, SyntheticSequence] = {}  # those in steps under way
        self._free_ns = 0  # when the last pass ended
        self._line: deque[PromptPrefill] = deque()  # prompts on their way in
        self._news: dict[int, deque[Progress]] = {0: deque()}  # of those that rode in rounds, by owner
        self._step_tokens = config.step_prefill_tokens or STEP_PREFILL

    @staticmethod
    def load(config: VerifyConfig) -> SyntheticVerifyEngine:
        """Reads the file."""
        return SyntheticVerifyEngine(load_spec(config.synthetic or ""), config)

    def cost_curve(self) -> Curve:
        """What a profiler would have measured."""
        sizes, contexts, seconds = self.spec.verify.announced()
        return Curve(np.array(sizes), np.array(contexts), np.array(seconds), "synthetic")

    @property
    def held(self) -> Held:
        return Held(len(self._sequences), self._pages.held, self._pages.total)

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
        held = self._sequences.get(cursor.sequence)
        if held is not None and cursor.epoch <= held.state.epoch:
            return stale(held.state, f"epoch {cursor.epoch} is already held, or followed by {held.state.epoch}")
        ids = token_ids if token_ids is not None else [0] * cursor.committed_len
        vocab, length = self.target.vocab_size, self.target.context_length
        problem = check_prompt(cursor, ids, reserve_tokens, vocab_size=vocab, context_length=length)
        if problem is None and law.logprobs is not None:
            problem = invalid("law.logprobs: a synthetic target has none")
        if problem is None and scores is not None:
            problem = invalid("prompt_logprobs: a synthetic target has none")
        if problem is not None:
            return problem
        if cursor.sequence in self._busy:
            return Refusal(RefusalReason.NO_PAGES, "what was held under this number is in a pass that has not ended")
        if held is not None:
            self._drop(cursor.sequence)
        if len(self._sequences) >= self.config.max_sequences:
            return Refusal(RefusalReason.NO_PAGES, f"{len(self._sequences)} sequences are held, the limit")
        if not self._pages.can_reserve(reserve_tokens):
            free = self._pages.total - self._pages.held
            wanted = self._pages.pages_for(reserve_tokens)
            return Refusal(RefusalReason.NO_PAGES, f"{wanted} pages are needed and {free} are free")
        self._pages.reserve(cursor.sequence, reserve_tokens)
        capacity = self._pages.capacity(cursor.sequence)
        state = CachedSequence(
            cursor.sequence, cursor.epoch, owner, law, cursor.committed_len, capacity, keep_features=keep_features
        )
        first = int(ids[0])
        self._sequences[cursor.sequence] = SyntheticSequence(state, self._law.key(first, law.seed, law.choice), first)
        return None

    def spared(self, sequence: int, epoch: int, *, rows: bool) -> tuple[int, SyntheticRows | None]:
        return 0, None  # no prefix is kept: every prompt takes its time

    def line_up(self, prefill: PromptPrefill) -> None:
        self._news.setdefault(prefill.owner, deque())
        self._line.append(prefill)

    def prefill_next(self, *, short: bool = False, owner: int = 0) -> Progress | None:
        """A chunk of the owner's first prompt in line, by itself."""
        step = self.begin_prefill(short=short, owner=owner)
        if step is not None:
            step.run()
            self.end(step)
        return self.take_news(owner)

    def begin_prefill(self, *, short: bool = False, owner: int = 0) -> SyntheticStep | None:
        began = time.perf_counter_ns()
        first = [each for each in self._line if each.owner == owner][:1]
        riders, seconds = self._riders(first, self._step_tokens if short else self.config.prefill_chunk)
        return self._under_way(SyntheticStep(self._sleep, [], [], [], riders, seconds, began)) if riders else None

    def take_news(self, owner: int = 0) -> Progress | None:
        news = self._news.get(owner)
        return news.popleft() if news else None

    def _riders(self, prefills: Sequence[PromptPrefill], budget: int) -> tuple[list[Rider], float]:
        """The next tokens of prompts in line, first come, first served, and their seconds."""
        riders: list[Rider] = []
        seconds = 0.0
        for prefill in prefills:
            if budget <= 0:
                break
            held = self._sequences.get(prefill.sequence)
            if held is not None and self._busy.get(prefill.sequence) is held:
                continue  # in a pass that has not ended
            if held is None or held.state.epoch != prefill.epoch:
                self._line.remove(prefill)
                why = unknown(Cursor(prefill.sequence, prefill.epoch, 0, 0))
                self._tell(Progress(prefill, None, 0, False, why))
                continue
            start = held.state.cached
            ids = prefill.token_ids[start : start + budget]
            budget -= len(ids)
            seconds += self.spec.prefill_seconds(len(ids), start + len(ids))
            riders.append(Rider(prefill, held, ids))
        return riders, seconds

    def _tell(self, progress: Progress) -> None:
        if progress.prefill.owner in self._news:
            self._news[progress.prefill.owner].append(progress)

    def _rode(self, rider: Rider) -> None:
        state, start = rider.held.state, rider.held.state.cached
        state.cached += len(rider.token_ids)
        state.token_ids.extend(rider.token_ids)
        done = state.cached == state.prompt_len
        if done:
            self._line.remove(rider.prefill)
        wanted = state.keep_features or rider.prefill.wants_rows
        rows = self._rows(rider.held, start, state.cached) if wanted else None
        self._tell(Progress(rider.prefill, rows, len(rider.token_ids), done))

    def compile(self, constraint: Constraint, tenant: str) -> Future[Grammar]:
        """Nothing here is text."""
        future: Future[Grammar] = Future()
        future.set_exception(GrammarUnsupported("the target is synthetic and has no tokenizer"))
        return future

    def first_token(self, sequence: int, *, epoch: int | None = None, grammar: Grammar | None = None) -> int | Refusal:
        held = self._sequences.get(sequence)
        if held is None or (epoch is not None and epoch != held.state.epoch):
            return unknown(Cursor(sequence, epoch or 0, 0, 0))
        state = held.state
        if state.anchored or state.cached < state.prompt_len:
            return unknown(Cursor(sequence, epoch or 0, 0, 0))
        anchor = int(self._law.target(np.array([held.key], np.uint64), np.array([state.committed_len]))[0])
        state.token_ids.append(anchor)
        state.anchored = True
        return anchor

    def anchor_logprobs(self, sequence: int) -> tuple[ScoredToken, ...]:
        return ()  # `open` refuses laws that ask for them

    def prompt_logprobs(self, sequence: int) -> ScoredPrompt | None:
        return None  # so too

    def features(self, cursor: Cursor, start: int) -> SyntheticRows | Refusal:
        held = self._sequences.get(cursor.sequence)
        if held is None or held.state.epoch != cursor.epoch:
            return unknown(cursor)
        if not held.state.keep_features:
            return invalid("no feature rows are kept for this sequence")
        if cursor.committed_len > held.state.committed_len or not held.state.anchored:
            have = held.state.committed_len
            return stale(held.state, f"committed_len {cursor.committed_len} was claimed, {have} is here")
        stop = max(cursor.committed_len - 1, 0)
        if start > stop:
            return invalid(f"from_position: {start} is past {stop}")
        return self._rows(held, start, stop)

    def release(self, sequence: int, epoch: int) -> bool:
        held = self._sequences.get(sequence)
        if held is None or held.state.epoch > epoch:
            return False
        self._drop(sequence)
        return True

    def release_owner(self, owner: int) -> int:
        mine = [sequence for sequence, held in self._sequences.items() if held.state.owner == owner]
        for sequence in mine:
            self._drop(sequence)
        self._news.pop(owner, None)
        return len(mine)

    def grow(self, sequence: int, epoch: int, committed_len: int, slots: int) -> int | None:
        held = self._sequences.get(sequence)
        if held is None or held.state.epoch != epoch or held.state.capacity < committed_len:
            return None
        return min(slots, held.state.capacity - committed_len)

    def kept_rows(self, spans: Sequence[RowSpan]) -> KeptRows:
        counts, token_ids, data = [], list[int](), []
        for span in spans:
            held, count = self._sequences.get(span.sequence), 0
            if held is not None and held.state.epoch == span.epoch and held.state.keep_features:
                count = max(min(span.stop, held.state.cached) - span.start, 0)
            counts.append(count)
            if count and held is not None:
                token_ids += held.state.token_ids[span.start : span.start + count]
                data.append(row_bytes(held.first_token, self.feature_width) * count)
        rows = sum(counts)
        features = PackedRows(DTYPE, rows, self.feature_width, b"".join(data)) if rows else None
        return KeptRows(counts, token_ids, features)

    # -- rounds -----------------------------------------------------------------------------

    def judge_cohort(self, items: Sequence[VerifyItem]) -> Judged:
        """Verdicts by comparison, after the time that packed passes of these tokens take."""
        step = self.begin(items)
        step.run()
        return self.end(step)

    def begin(self, items: Sequence[VerifyItem]) -> SyntheticStep:
        began = time.perf_counter_ns()
        outcomes: list[Verdict | Refusal | None] = []
        runnable: list[tuple[int, VerifyItem, SyntheticSequence]] = []
        seen: set[int] = set()
        for index, item in enumerate(items):
            answer: Verdict | Refusal | None
            held = self._sequences.get(item.cursor.sequence)
            if item.cursor.sequence in seen:
                answer = invalid("cursor.sequence: twice in one cohort")
            else:
                answer = check_item(held.state if held else None, item, vocab_size=self.target.vocab_size)
            if answer is None and item.cursor.sequence in self._busy:
                answer = invalid("cursor: the sequence is in a pass that has not ended")
            seen.add(item.cursor.sequence)
            outcomes.append(answer)
            if answer is None and held is not None:
                runnable.append((index, item, held))
        if not runnable:
            return SyntheticStep(self._sleep, outcomes, [], [], [], 0.0, began)
        tokens = sum(1 + len(item.draft_ids) for _, item, _ in runnable)
        context = sum(held.state.committed_len for _, _, held in runnable) / len(runnable)
        riders, more = self._riders(list(self._line), self._step_tokens)
        seconds = self._seconds(tokens, context) + more
        said = self._target_ids(runnable)
        return self._under_way(SyntheticStep(self._sleep, outcomes, runnable, said, riders, seconds, began))

    def _under_way(self, step: SyntheticStep) -> SyntheticStep:
        self._busy |= {held.state.sequence: held for _, _, held in step.runnable}
        self._busy |= {rider.held.state.sequence: rider.held for rider in step.riders}
        return step

    def end(self, step: SyntheticStep) -> Judged:
        """What was known all along becomes so, but for sequences that have left."""
        features: list[SyntheticRows | None] = [None] * len(step.outcomes)
        for (index, item, held), ids in zip(step.runnable, step.said, strict=True):
            if self._left(held) or step.failure is not None:
                step.outcomes[index] = unknown(item.cursor)
            else:
                step.outcomes[index], features[index] = self._judge(item, held, ids)
        for rider in step.riders:
            if not self._left(rider.held) and step.failure is None:
                self._rode(rider)
        return Judged(
            outcomes=[each for each in step.outcomes if each is not None],
            features=features,
            tokens=step.tokens,
            forward_ns=step.forward_ns,
            prefill_tokens=sum(len(rider.token_ids) for rider in step.riders),
        )

    def _left(self, held: SyntheticSequence) -> bool:
        """Whether a sequence of a step that ends has left; what it held is free from now on."""
        sequence = held.state.sequence
        del self._busy[sequence]
        if self._sequences.get(sequence) is held:
            return False
        self._pages.release(sequence)
        return True

    def _target_ids(self, runnable: Sequence[tuple[int, VerifyItem, SyntheticSequence]]) -> list[list[int]]:
        """[n][k] what the target says after each cohort member's anchor."""
        widest = 1 + max(len(item.draft_ids) for _, item, _ in runnable)
        keys = np.array([held.key for _, _, held in runnable], np.uint64)
        positions = np.array([item.cursor.committed_len for _, item, _ in runnable])[:, None] + np.arange(widest)
        ids: list[list[int]] = self._law.target(keys[:, None], positions).tolist()
        return ids

    def _judge(self, item: VerifyItem, held: SyntheticSequence, ids: list[int]) -> tuple[Verdict, SyntheticRows | None]:
        state = held.state
        accepted = 0
        while accepted < len(item.draft_ids) and item.draft_ids[accepted] == ids[accepted]:
            accepted += 1
        start = state.cached
        state.token_ids.extend(ids[: accepted + 1])
        state.cached += accepted + 1
        state.round = item.cursor.round
        verdict = Verdict(item.cursor, accepted, ids[accepted], state.cached, len(item.draft_ids))
        wanted = state.keep_features or item.wants_rows
        return verdict, self._rows(held, start, state.cached) if wanted else None

    # -- small things -----------------------------------------------------------------------

    def _rows(self, held: SyntheticSequence, start: int, stop: int) -> SyntheticRows:
        state = held.state
        ids = state.token_ids[start:stop]
        return SyntheticRows(state.sequence, state.epoch, start, ids, held.first_token, self.feature_width)

    def _seconds(self, tokens: int, context: float) -> float:
        """Of the packed passes that hold these tokens."""
        limit = self.config.max_batch_tokens
        return sum(self.spec.verify.seconds(min(tokens - at, limit), context) for at in range(0, tokens, limit))

    def _sleep(self, began_ns: int, seconds: float) -> int:
        """Until the pass is over that began then, or when the one before it ended; its nanoseconds."""
        began_ns = max(began_ns, self._free_ns)
        self.missed_ns += self._pace.sleep_until(began_ns + int(self._pace.take(seconds) * 1e9))
        self._free_ns = time.perf_counter_ns()
        return self._free_ns - began_ns

    def _drop(self, sequence: int) -> None:
        held = self._sequences.pop(sequence, None)
        if held is None or self._busy.get(sequence) is not held:  # else when its pass has ended
            self._pages.release(sequence)
