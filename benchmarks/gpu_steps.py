"""Times the parts of a round on one device, each beside its lower bound: see `gpu`.

A step reads every weight and every key and value once; a draft reads the drafter's weights. Neither
can take less than that at the device's rate of reading, which is measured here. Steps use the
engine as rounds do: pass, rule with forced lengths, rows. With recorded passes and without, where
the device has them.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.engine_pair import GREEDY, EnginePair
from benchmarks.random_pair import SLOTS, PairShape
from benchmarks.row import note
from draft_service.engine import DraftEngine
from draft_service.interface import DraftItem
from dspark.decoding import at_once
from dspark.decoding.acceptance import PackedCase
from dspark.decoding.judge_at_once import judge_at_once
from dspark.types import Cursor, Rule, SamplingParams, SparseQ
from verify_service.engine import VerifyEngine
from verify_service.profiler import items_of, open_all

SEQUENCES, TINY_SEQUENCES = (1, 4, 16, 64), (1, 2)
TOKENS = (1, 2, 4, 8)  # of each sequence in a step
ENTRIES = 64  # of a drafted slot's q
TIMES, TINY_TIMES, SPARED = 30, 3, 3


@dataclass
class DeviceClock:
    """Times work on a device, and tells when a part of the program has used its time."""

    device: torch.device
    until: float

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    @property
    def over(self) -> bool:
        return time.perf_counter() > self.until

    def median_s(
        self, call: Callable[[], Any], again: Callable[[], Any] = lambda: None, *, times: int
    ) -> float:
        """Median seconds of `call` alone; `again` undoes what it changed."""
        taken = []
        for turn in range(times + SPARED):
            began = self.now()
            call()
            if turn >= SPARED:
                taken.append(self.now() - began)
            again()
            if self.over and taken:
                break
        return float(np.median(taken))

    def bytes_per_second(self) -> float:
        """Rate of reading: a maximum over a large tensor, best of several."""
        size = (1 << 30) if self.device.type == "cuda" else (1 << 22)
        numbers = torch.ones(size, dtype=torch.int8, device=self.device).view(torch.int64)
        return numbers.nbytes / min(self.median_s(numbers.max, times=1) for _ in range(8))


def steps(
    verifier: VerifyEngine, clock: DeviceClock, rate: float, context: int, *, tiny: bool
) -> Iterator[dict[str, Any]]:
    """A line for every (sequences, tokens of each), as far as there is time."""
    model = verifier.target.model
    weights = (
        sum(p.numel() * p.element_size() for p in model.parameters())
        - model.get_input_embeddings().weight.nbytes
    )
    shape = model.config
    head = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    key_value = (
        2 * shape.num_hidden_layers * shape.num_key_value_heads * head * model.dtype.itemsize
    )
    for count in TINY_SEQUENCES if tiny else SEQUENCES:
        open_all(verifier, count, context)
        for tokens in TOKENS:
            if clock.over:
                break
            items = items_of(count * tokens, context, count)

            def rewind(count: int = count) -> None:
                for n in range(count):
                    verifier.rewind(n, context)

            step_s = clock.median_s(
                partial(verifier.judge_cohort, items), rewind, times=TINY_TIMES if tiny else TIMES
            )
            floor_s = (weights + count * context * key_value) / rate
            yield _line("step", count, count * tokens, step_s, floor_s)
        for n in range(count):
            verifier.release(n, 1)


def drafts(
    drafter: DraftEngine, clock: DeviceClock, rate: float, context: int, *, tiny: bool
) -> Iterator[dict[str, Any]]:
    """A line for every number of sequences."""
    weights = sum(p.numel() * p.element_size() for p in drafter.drafter.parameters())
    for count in TINY_SEQUENCES if tiny else SEQUENCES:
        if clock.over:
            break
        items = []
        for n in range(count):
            if (problem := drafter.pretend(Cursor(n, 1, 0, context), context)) is not None:
                raise RuntimeError(problem.message)
            items.append(DraftItem(Cursor(n, 1, 1, context + 1), 0, context, GREEDY))
        draft_s = clock.median_s(partial(drafter.draft, items), times=TINY_TIMES if tiny else TIMES)
        yield _line("draft", count, count * SLOTS, draft_s, weights / rate)
        for n in range(count):
            drafter.contexts.release(n, 1)


def rules(
    clock: DeviceClock, vocabulary: int, *, tiny: bool, compiled: bool
) -> Iterator[dict[str, Any]]:
    """Lines of the rule alone, over random logits; also with `torch.compile` if `compiled`."""
    ways = {"rule": at_once.ratio} | (
        {"rule, compiled": torch.compile(at_once.ratio)} if compiled else {}
    )
    for count in TINY_SEQUENCES if tiny else SEQUENCES:
        draw = np.random.default_rng(count)
        logits = torch.randn(count * (SLOTS + 1), vocabulary, device=clock.device)
        cases = [_case(n, vocabulary, draw) for n in range(count)]
        for name, way in ways.items():
            if clock.over:
                return
            with mock.patch.object(at_once, "ratio", way):
                taken = clock.median_s(
                    partial(judge_at_once, logits, cases), times=TINY_TIMES if tiny else TIMES
                )
            yield _line(name, count, len(logits), taken, 0.0)


def _case(number: int, vocabulary: int, draw: np.random.Generator) -> PackedCase:
    entries = min(ENTRIES, vocabulary)
    ids = np.stack([draw.permutation(vocabulary)[:entries] for _ in range(SLOTS)]).astype(np.uint32)
    q = SparseQ.of(ids, draw.dirichlet([0.5] * entries, SLOTS).astype(np.float32))
    params = SamplingParams(rule=Rule.BLOCK, seed=number + 1)
    return PackedCase(
        Cursor(number, 1, 1, 9), params, number * (SLOTS + 1), tuple(ids[:, 0].tolist()), q
    )


def _line(part: str, sequences: int, tokens: int, seconds: float, floor_s: float) -> dict[str, Any]:
    made = {"part": part, "sequences": sequences, "tokens": tokens, "ms": round(1e3 * seconds, 3)}
    if floor_s:
        made |= {"floor_ms": round(1e3 * floor_s, 3), "over_floor": round(seconds / floor_s, 2)}
    note(str(made))
    return made


def measure(
    engines: Callable[[bool], EnginePair],
    args: argparse.Namespace,
    shape: PairShape,
    device: torch.device,
    context: int,
) -> Iterator[dict[str, Any]]:
    """Lines of the table. engines: makes both, with recorded passes or without."""
    clock = DeviceClock(device, time.perf_counter() + args.part_s)
    rate = clock.bytes_per_second()
    note(f"reads {rate / 1e12:.3f} TB/s")
    on_card = device.type == "cuda"
    for graphs in (True, False) if on_card and not args.no_graphs else (False,):
        pair = engines(graphs)
        for each in steps(pair.verifier, clock, rate, context, tiny=args.tiny):
            yield {**each, "graphs": graphs}
        if not graphs:
            yield from drafts(pair.drafter, clock, rate, context, tiny=args.tiny)
        del pair
        # recordings and their runner hold each other, and a card has no room for two engines
        gc.collect()
        if on_card:
            torch.cuda.empty_cache()
    yield from rules(clock, shape.vocab_size, tiny=args.tiny, compiled=on_card)
