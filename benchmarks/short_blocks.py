"""What is lost and what is won when a drafter computes only the slots that are asked for.

Slots of a block see each other in both directions and were trained in whole blocks, so a shorter block is another one.
Acceptance at temperature 0 at every token of the target's own answers to held-out prompts: of the first k slots of
whole blocks, and of blocks of k. Then the time of one pass by sequences and slots, both ways, in turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from benchmarks.pair import ROOT, Pair, add_arguments, chosen
from benchmarks.row import Row, note
from draft_service.config import DraftConfig
from draft_service.engine import DraftEngine, DraftItem
from dspark.model.checkpoint import load_drafter, load_target
from dspark.types import Cursor, Law, Rule
from training.asked import answers, questions
from training.judged import judged

SLOTS = (1, 2, 3, 4, 6, 8)
SEQUENCES, TIMED = (1, 8, 16), (1, 3)
CONTEXT, SEED, MOST_LOSS = 128, 1, 0.05
GREEDY = Law(temperature=0.0)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.short_blocks", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--prompts", type=int, default=10, help="of each domain")
    parser.add_argument("--tokens", type=int, default=96, help="of each answer")
    parser.add_argument("--times", type=int, default=25, help="passes of each size")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    pair = chosen(args)
    lengths = _acceptance(pair, args.prompts, args.tokens)
    lost = max(whole - short for found in lengths.values() for whole, short in found.values())
    value = {"tokens_a_round": lengths, "most_lost": round(lost, 4), "pass_ms": _passes(pair, args.times)}
    name = "blocks of the slots asked for, against the head of whole blocks"
    return Row("", name, value, f"at most {MOST_LOSS:g} tokens a round less", lost <= MOST_LOSS).show(as_json=args.json)


def _acceptance(pair: Pair, prompts: int, tokens: int) -> dict[str, dict[int, tuple[float, float]]]:
    """By domain and slots: mean tokens a round of the head of whole blocks, and of short ones."""
    target, drafter = load_target(pair.target), load_drafter(pair.drafter, target=pair.target)
    drafter.requires_grad_(False).serve()
    whole = drafter.config
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for file in sorted((ROOT / "benchmarks" / "prompts" / "smollm2").glob("*.jsonl")):
        asked = questions(file, target, rows=prompts, seed=SEED)
        given = {"temperature": 0.0, "rule": Rule.TOKEN, "seed": SEED}
        texts = list(answers(target, asked, **given, new_tokens=tokens, room=whole.block_size + 1))  # type: ignore[arg-type]

        def accepted(slots: int) -> np.ndarray:  # [anchors]
            drafter.config = replace(whole, block_size=slots)
            try:
                all_texts = judged(target, drafter, texts, **given, cut=None)  # type: ignore[arg-type] # noqa: B023
                return np.concatenate([text.accepted for text in all_texts])
            finally:
                drafter.config = whole

        full = accepted(whole.block_size)
        found[file.stem] = {
            slots: (round(1 + float(np.minimum(full, slots).mean()), 3), round(1 + float(accepted(slots).mean()), 3))
            for slots in SLOTS
            if slots < whole.block_size
        }
        note(f"{file.stem}: {len(full)} rounds: {found[file.stem]}")
    return found


def _passes(pair: Pair, times: int) -> dict[str, dict[int, tuple[float, float]]]:
    """By sequences and slots: median milliseconds of a pass of whole blocks, and of short ones."""
    config = DraftConfig(drafter=str(pair.drafter), target=str(pair.target))
    engines = [DraftEngine.load(replace(config, whole_blocks=whole)) for whole in (True, False)]
    for engine in engines:
        for sequence in range(max(SEQUENCES)):
            engine.pretend(Cursor(sequence, 1, 0, CONTEXT), CONTEXT)
    block = engines[0].drafter.config.block_size
    return {
        f"{count} sequences": {slots: _in_turns(engines, count, slots, times) for slots in (*TIMED, block)}
        for count in SEQUENCES
    }


def _in_turns(engines: Sequence[DraftEngine], count: int, slots: int, times: int) -> tuple[float, float]:
    items = [DraftItem(Cursor(n, 1, 1, CONTEXT + 1), 0, CONTEXT, GREEDY, max_slots=slots) for n in range(count)]
    took: tuple[list[int], list[int]] = ([], [])
    for _ in range(times):
        for engine, its in zip(engines, took, strict=True):
            its.append(engine.timed_draft(items)[1])
    whole, short = (round(statistics.median(its) / 1e6, 2) for its in took)
    return whole, short


if __name__ == "__main__":
    sys.exit(main())
