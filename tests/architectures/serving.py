"""Drives an engine through whole answers: prompts that ride with rounds, and drafts that are right
for a while."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from dspark.types import Cursor, Refusal, SamplingParams, SparseQ, Verdict
from verify_service.engine import VerifyEngine
from verify_service.sequences import VerifyItem

MOST_RIGHT = MOST_WRONG = 7  # tokens of a draft


def prompt(count: int, seed: int) -> list[int]:
    """Random ids of a vocabulary of 128."""
    return torch.randint(1, 128, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def begin(engine: VerifyEngine, sequence: int, ids: list[int], prompt_len: int) -> None:
    """Opens a greedy sequence and lines its tokens up; `prompt_len` of them were the prompt."""
    params = SamplingParams(temperature=0.0, prompt_len=prompt_len)
    assert (
        engine.open(Cursor(sequence, 1, 0, len(ids)), params, len(ids) + 60, False, token_ids=ids)
        is None
    )


def finish(
    engine: VerifyEngine, sequences: dict[int, list[int]], answers: Mapping[int, list[int]]
) -> None:
    """Runs all of them to the end of their answers and past it by no more than a draft."""
    draw = np.random.default_rng(0)
    ends = {n: len(ids) + len(answers[n]) for n, ids in sequences.items()}
    right = {n: [*ids, *answers[n]] for n, ids in sequences.items()}
    anchored: set[int] = set()
    number = 0
    while anchored != sequences.keys() or any(len(ids) < ends[n] for n, ids in sequences.items()):
        number += 1
        items = []
        for n in sorted(anchored):
            ids = sequences[n]
            good, bad = int(draw.integers(0, MOST_RIGHT + 1)), int(draw.integers(0, MOST_WRONG + 1))
            draft = right[n][len(ids) : len(ids) + good]
            draft += [(token + 1) % 128 for token in right[n][len(ids) + good :][:bad]]
            q = SparseQ.of(
                np.array(draft, np.uint32).reshape(-1, 1), np.ones((len(draft), 1), np.float32)
            )
            if len(ids) < ends[n]:
                items.append(VerifyItem(Cursor(n, 1, number, len(ids)), ids[-1], tuple(draft), q))
        if items:
            for item, verdict in zip(items, engine.judge_cohort(items).outcomes, strict=True):
                assert isinstance(verdict, Verdict), verdict
                n = item.cursor.sequence
                sequences[n] += verdict.tokens
        elif anchored != sequences.keys():
            assert engine.prefill_next()
        for n in sequences.keys() - anchored:
            state = engine.find(n, 1)
            assert state is not None
            assert state.broken is None
            if state.prefilled:
                token = engine.first_token(n)
                assert not isinstance(token, Refusal)
                sequences[n].append(token)
                anchored.add(n)
