"""Drives an engine through whole answers: prompts ride with rounds, drafts are right at first."""

from collections.abc import Mapping

import numpy as np
import torch

from dspark.types import SamplingParams
from tests.engine_steps import item, judged, line_up
from verify_service.engine import VerifyEngine

MOST_RIGHT = MOST_WRONG = 7  # tokens of a draft


def prompt(count: int, seed: int) -> list[int]:
    """Random ids of a vocabulary of 128."""
    return torch.randint(1, 128, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def begin(engine: VerifyEngine, sequence: int, ids: list[int], prompt_len: int) -> None:
    """Opens a greedy sequence and lines its tokens up; `prompt_len` of them were the prompt."""
    params = SamplingParams(temperature=0.0, prompt_len=prompt_len)
    line_up(engine, sequence, ids, params=params, keep=False)


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
            if len(ids) < ends[n]:
                items.append(item(n, number, ids, draft))
        if items:
            for each, verdict in zip(items, judged(engine, *items), strict=True):
                sequences[each.cursor.sequence] += verdict.tokens
        elif anchored != sequences.keys():
            assert engine.prefill_next()
        for n in sequences.keys() - anchored:
            state = engine.find(n, 1)
            assert state is not None
            assert state.broken is None
            if state.prefilled:
                token = engine.first_token(n)
                assert isinstance(token, int)
                sequences[n].append(token)
                anchored.add(n)
