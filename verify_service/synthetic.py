"""A verify engine without a target: the real engine's core around batches that sleep. No torch.

Sequences, KV blocks, queued prompts and cursors are those of the real engine. Tokens and step times
come from a file (`dspark.synthetic`). A token depends on its sequence's key and its position alone,
at every temperature and under every rule, so an answer is the same whatever is drafted, verified or
preempted.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np

from dspark.pages import Slots
from dspark.synthetic.oracle import Ints, SyntheticOracle
from dspark.synthetic.pace import DevicePace
from dspark.synthetic.rows import DTYPE, row_values
from dspark.synthetic.spec import SyntheticSpec
from dspark.types import Constraint, Refusal, SamplingParams, Verdict
from dspark.wire.orders import PackedRows
from verify_service.batch_runner import ExecutedBatch, Grammar, PreparedBatch
from verify_service.config import KV_TOKENS, VerifyConfig
from verify_service.drafts import sound
from verify_service.engine_core import EngineCore
from verify_service.kv_cache_manager import KVCacheManager
from verify_service.sequences import CachedSequence, VerifyItem, invalid

Said = tuple[int, ...]  # accepted drafted tokens, then the target's own token


@dataclasses.dataclass(frozen=True, slots=True)
class SyntheticTarget:
    """Announced facts of the synthetic target."""

    vocab_size: int
    context_length: int
    stop_ids: tuple[int, ...] = ()


class SyntheticRowStore:
    """A `RowStore` whose row is the first prompt token of the sequence that wrote it."""

    def __init__(self, slots: int, width: int) -> None:
        self.width = width
        self._first_tokens = np.zeros(slots, np.int64)

    def put(self, slots: Slots | Sequence[int], rows: Ints | int) -> None:
        self._first_tokens[_index(slots)] = rows

    def packed(self, slots: Slots | Sequence[int]) -> PackedRows:
        values = row_values(self._first_tokens[_index(slots)], self.width)
        return PackedRows(DTYPE, len(slots), self.width, values.reshape(-1).data.cast("B"))


def _index(slots: Slots | Sequence[int]) -> slice | Ints:
    return (
        slice(slots.start, slots.stop) if isinstance(slots, range) else np.asarray(slots, np.int64)
    )


class SyntheticVerifyEngine(EngineCore):
    """An engine whose batches sleep, and their runner. It caches no prefixes, so every prompt runs
    whole."""

    attention_path = "synthetic"
    attention_reason = "no weights are here"
    device = "synthetic"
    dtype = "none"

    def __init__(self, spec: SyntheticSpec, config: VerifyConfig) -> None:
        self.spec = spec
        self._oracle, self._pace = SyntheticOracle(spec), DevicePace(spec.jitter, spec.seed)
        self._free_ns = 0  # when the last batch ended
        version = f"synthetic-{spec.fingerprint}"
        self.target = SyntheticTarget(spec.vocabulary, spec.context_length)
        # only a drafter of the same file can read the rows
        self.projection = version
        pages = (config.kv_tokens or KV_TOKENS) // config.page_size
        self._store = store = SyntheticRowStore(pages * config.page_size, spec.feature_width)
        kv_cache = KVCacheManager(
            pages=pages, page_size=config.page_size, most=config.max_sequences, store=store, kept=0
        )
        config = dataclasses.replace(config, target=config.target or "synthetic")
        super().__init__(config, version, kv_cache, self)

    def _unserved(self, params: SamplingParams, scores: int | None) -> Refusal | None:
        for field, asked in (("logprobs", params.logprobs), ("prompt_logprobs", scores)):
            if asked is not None:
                return invalid(f"sampling.{field}: unsupported: a synthetic target has none")
        return None

    def compile(self, constraint: Constraint, salt: str) -> Future[Grammar | Refusal]:
        """Refuses every grammar, as a synthetic target has no tokenizer."""
        future: Future[Grammar | Refusal] = Future()
        future.set_result(invalid("unsupported: the target is synthetic and has no tokenizer"))
        return future

    def _drawn_anchor(self, state: CachedSequence, grammar: Grammar | None) -> int:
        key, at = np.array([self._key(state)], np.uint64), np.array([state.committed_len])
        return int(self._oracle.target(key, at)[0])

    def forget(self, state: CachedSequence) -> None:
        pass

    def _key(self, state: CachedSequence) -> int:
        """Oracle key of a sequence, from its first token, seed and choice; needs `token_ids`."""
        return self._oracle.key(state.token_ids[0], state.params.seed, state.params.choice)

    # Its batches.

    def inputs(self, item: VerifyItem, state: CachedSequence) -> int:
        return self._key(state)

    def execute(self, prepared: PreparedBatch[int]) -> ExecutedBatch:
        """Sleeps for the batch's time, from its preparation or the end of the last batch, whichever
        is later."""
        ends_ns = max(prepared.began_ns, self._free_ns) + int(
            self._pace.take(self._seconds(prepared)) * 1e9
        )
        prepared = sound(prepared, self.spec.vocabulary)
        said: Sequence[Said] = ()
        if rows := prepared.rows:
            keys = np.array([row.inputs for row in rows], np.uint64)
            lengths = np.array([row.item.cursor.committed_len for row in rows])
            said = self._oracle.judge(keys, lengths, [row.item.draft_ids for row in rows])
        self._pace.sleep_until(ends_ns)
        self._free_ns = time.perf_counter_ns()
        return ExecutedBatch(prepared, made=said)

    def _seconds(self, batch: PreparedBatch[int]) -> float:
        seconds = 0.0
        if rows := batch.rows:
            context = sum(row.item.cursor.committed_len for row in rows) / len(rows)
            seconds = self.spec.verify.seconds(batch.tokens, context)
        for chunk in batch.chunks:
            count = len(chunk.token_ids)
            seconds += self.spec.prefill_seconds(count, chunk.state.cached + count)
        return seconds

    def commit(self, executed: ExecutedBatch) -> list[Verdict | Refusal]:
        batch: PreparedBatch[int] = executed.prepared
        outcomes: list[Verdict | Refusal] = []
        grown: list[tuple[CachedSequence, Sequence[int]]] = []
        for (_, item, state, *_), drawn in zip(batch.rows, executed.made, strict=True):
            grown.append((state, drawn))
            state.round = item.cursor.round
            outcomes.append(Verdict(drawn, len(item.draft_ids), item.spoilt))
        self._commit(grown + [(each.state, each.token_ids) for each in batch.chunks])
        return outcomes

    def _commit(self, grown: Sequence[tuple[CachedSequence, Sequence[int]]]) -> None:
        """Appends tokens to sequences and stores the rows of all of them at once."""
        runs, firsts = list[tuple[CachedSequence, int, int]](), list[int]()
        for state, token_ids in grown:
            count = len(token_ids)
            state.token_ids.extend(token_ids)
            if state.keep_features:
                runs.append((state, state.cached, count))
                firsts += [state.token_ids[0]] * count
            state.cached += count
        if runs:
            self._store.put(self._kv_cache.where(runs), np.array(firsts, np.int64))
