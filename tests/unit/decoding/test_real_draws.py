"""The joint law of four tokens through the deployed code, its own draws included, over rounds that
use older budgets.

Enumeration integrates the coins, so it cannot see a draw that is used twice: noise keyed by
position in a ratio rule, noise that draft and acceptance share. Here every draw is real, and how
much of a block is verified depends on what was drafted a round before, as a price that follows from
older rounds leaves it. Keys are fixed, so the outcome is too.
"""

import itertools

import numpy as np
import pytest
import torch

from dspark.decoding.acceptance import PackedCase, judge
from dspark.decoding.drafting import DraftNoise
from dspark.types import NO_Q, Cursor, Rule, SamplingParams, SparseQ

VOCAB, BLOCK, HORIZON, RUNS = 3, 3, 4, 12_000
Tokens = tuple[int, ...]


def _tables(seed: int) -> tuple[dict[Tokens, np.ndarray], dict[Tokens, np.ndarray]]:
    """p and q after every word, far from flat and from each other."""
    rng = np.random.default_rng(seed)
    words = [
        word
        for size in range(HORIZON + BLOCK)
        for word in itertools.product(range(VOCAB), repeat=size)
    ]
    return ({word: rng.dirichlet([0.8] * VOCAB) for word in words} for _ in range(2))  # type: ignore[return-value]


def _runs(
    rule: Rule, p: dict[Tokens, np.ndarray], q: dict[Tokens, np.ndarray]
) -> dict[Tokens, int]:
    committed: list[Tokens] = [()] * RUNS
    budget = [BLOCK] * RUNS
    ids = torch.arange(VOCAB)
    for round_ in range(HORIZON):
        running = [run for run in range(RUNS) if len(committed[run]) < HORIZON]
        if not running:
            break
        all_params = [SamplingParams(seed=run, rule=rule) for run in running]
        cursors = [Cursor(run, 1, round_, 1 + len(committed[run])) for run in running]
        noise = DraftNoise(all_params, cursors, BLOCK)
        drafted: list[Tokens] = [()] * len(running)
        sent = np.zeros((len(running), BLOCK, VOCAB), np.float32)
        for slot in range(BLOCK):
            sent[:, slot] = [
                q[committed[run] + block] for run, block in zip(running, drafted, strict=True)
            ]
            tokens = noise.pick(
                slot, ids.expand(len(running), -1), torch.from_numpy(sent[:, slot])
            ).tolist()
            drafted = [(*block, token) for block, token in zip(drafted, tokens, strict=True)]
        cases, rows = [], []
        for row, run in enumerate(running):
            draft = drafted[row][: budget[run]]
            numbers = np.tile(np.arange(VOCAB, dtype=np.uint32), (len(draft), 1))
            own = (
                NO_Q
                if rule is Rule.COUPLED or not draft
                else SparseQ.of(numbers, sent[row, : len(draft)])
            )
            cases.append(PackedCase(cursors[row], all_params[row], len(rows), draft, own))
            rows += [p[committed[run] + draft[:k]] for k in range(len(draft) + 1)]
            # what was drafted past this round's anchor decides the next
            budget[run] = (0, 1, BLOCK)[drafted[row][1]]
        verdicts = judge(torch.from_numpy(np.log(rows)), cases)
        for row, (run, (accepted, token)) in enumerate(zip(running, verdicts, strict=True)):
            committed[run] = (committed[run] + drafted[row][:accepted] + (token,))[:HORIZON]
    counts: dict[Tokens, int] = {}
    for word in committed:
        counts[word] = counts.get(word, 0) + 1
    return counts


@pytest.mark.parametrize("rule", list(Rule))
def test_four_tokens_by_real_draws_follow_the_target(rule: Rule) -> None:
    p, q = _tables(3)
    counts = _runs(rule, p, q)
    statistic, cells = 0.0, 0
    for word in itertools.product(range(VOCAB), repeat=HORIZON):
        expected = RUNS * float(np.prod([p[word[:k]][token] for k, token in enumerate(word)]))
        statistic += (counts.get(word, 0) - expected) ** 2 / expected
        cells += 1
    # Chi-square: mean cells - 1, standard deviation sqrt(2 (cells - 1)). Reused noise gives several
    # times as much.
    assert statistic < cells - 1 + 4.5 * (2 * (cells - 1)) ** 0.5
