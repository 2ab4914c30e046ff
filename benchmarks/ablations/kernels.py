"""What each of the project's kernels for CPUs brings end to end: the shipped pair with it and
without, round by round.

Two pairs of engines live in this process, one with a kernel and one without. Both decode the same
prompts greedily with blocks of a fixed length, one round each by turns, and a round's cost is the
processor time of this thread, so that other work on the machine shifts both alike. What counts is
tokens per second; the ratio is the median over pairs of rounds. `torch.compile` in place of lean
layers is measured in the same way.
"""

from __future__ import annotations

import contextlib
import gc
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.engine_pair import GREEDY, EngineAnswer, EnginePair
from benchmarks.pair import DOMAINS, Pair
from benchmarks.row import Row, note
from dspark.model.target import decoder_layers

TOKENS, SLOTS, LONGEST_PROMPT = 96, 3, 160
SEQUENCES = (1, 8)
BAR = 1.2


@dataclass(frozen=True)
class Without:
    """How a pair is made without one kernel. verify: settings of its verifier. loading: what is
    patched while it loads."""

    verify: dict[str, Any] = field(default_factory=dict)
    loading: tuple[str, ...] = ()
    compiled: bool = False


_NO_HALF = "dspark.model.products.half_works"
KERNELS = {
    "attention": Without({"attention_kernel": False}),
    "half products": Without(loading=(_NO_HALF,)),
    "lean layers": Without({"lean_layers": False}),
    "torch.compile": Without({"attention_kernel": False, "lean_layers": False}, compiled=True),
}


class Side:
    """Both engines, with everything or without one kernel."""

    def __init__(self, pair: Pair, count: int, context: int, without: Without) -> None:
        with _patched(without.loading):
            self._engines = EnginePair.load(
                pair, count, count * 2 * (context + TOKENS), ("bfloat16",), **without.verify
            )
        if without.compiled:
            for layer in decoder_layers(self._engines.verifier.target.model):
                layer.forward = torch.compile(layer.forward, dynamic=True)
        self._running: list[EngineAnswer] = []

    def begin(self, prompts: Sequence[list[int]]) -> None:
        """Prefills the prompts; the first round is next."""
        self._running = [
            self._engines.begin(number, prompt, GREEDY, TOKENS + 16)
            for number, prompt in enumerate(prompts)
        ]

    def round(self) -> tuple[float, int]:
        """Runs one round of all sequences; returns (processor seconds, tokens committed)."""
        began = time.thread_time()
        committed = self._engines.judge(self._running, self._engines.draft(self._running, SLOTS))
        return time.thread_time() - began, committed

    def end(self) -> None:
        self._engines.release(self._running)


@contextlib.contextmanager
def _patched(names: Sequence[str]) -> Iterator[None]:
    """Context: the functions of these names return None."""
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch(name, return_value=None))
        yield


def compare(
    name: str, pair: Pair, sequences: int, context: int, repetitions: int
) -> dict[str, float]:
    """Tokens a second with and without the kernel at `sequences` sequences, and the ratio of their
    times for the same rounds."""
    sides = (
        Side(pair, sequences, context, Without()),
        Side(pair, sequences, context, KERNELS[name]),
    )
    texts = [
        _long(pair.token_ids(prompt), context)
        for domain in DOMAINS
        for prompt in pair.prompts(domain, 6)
    ]
    took: tuple[list[float], list[float]] = ([], [])
    tokens = [0, 0]
    for repetition in range(repetitions + 1):  # the first warms up
        at = repetition * sequences
        prompts = [texts[(at + n) % len(texts)] for n in range(sequences)]
        for side in sides:
            side.begin(prompts)
        for turn in range(TOKENS // (SLOTS + 1)):
            for which in (0, 1) if turn % 2 else (1, 0):
                seconds, committed = sides[which].round()
                if repetition:
                    took[which].append(seconds)
                    tokens[which] += committed
        for side in sides:
            side.end()
    note(
        f"{name}, {sequences}: {[round(1e3 * statistics.median(each), 2) for each in took]} ms a "
        "round"
    )
    return {
        "with": round(tokens[0] / sum(took[0]), 1),
        "without": round(tokens[1] / sum(took[1]), 1),
        "with_ms": round(1e3 * statistics.median(took[0]), 2),
        "without_ms": round(1e3 * statistics.median(took[1]), 2),
        "ratio": round(statistics.median(off / on for on, off in zip(*took, strict=True)), 3),
    }


def _long(ids: list[int], context: int) -> list[int]:
    """At most `context` tokens of a prompt; beyond `LONGEST_PROMPT` a short one is repeated."""
    return (
        ids[:context] if context <= LONGEST_PROMPT else (ids * (context // len(ids) + 1))[:context]
    )


def row(pair: Pair, names: Sequence[str], context: int, repetitions: int, file: Path | None) -> Row:
    """Measures kernels, all or those of `names`. file: JSON table to which the figures are
    added."""
    torch.set_num_threads(1)
    table: dict[str, dict[str, dict[str, float]]] = {}
    if file and file.exists():
        table = json.loads(file.read_text(encoding="utf-8"))
    for name in names or KERNELS:
        for sequences in SEQUENCES:
            found = compare(name, pair, sequences, context, repetitions)
            table.setdefault(name, {})[str(sequences)] = found
            gc.collect()
            if file:
                file.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    worth = all(by["8"]["ratio"] >= BAR or by["1"]["ratio"] >= BAR for by in table.values() if by)
    return Row("B9", "what kernels for CPUs bring", table, f"{BAR} times", worth)
