"""The ratio rules that are deployed, driven over grids of coins: they decide and draw as the papers
say.

The expected laws are written out here on plain floats. `tests/mutation` puts bugs into the source
and expects these tests, among others, to fail.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from forced_coins import judged

from dspark.types import Rule

N = 32
LAST = 1.0 - 2.0**-53
GRID = [step / N for step in range(N)]
VOCAB = 4


def tables(count: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(p [3, V], q ids [2, K], q probs [2, K] float32 with any sum), with zeros, ties and disjoint
    supports."""
    rng = np.random.default_rng(11)
    made = []
    for number in range(count):
        p = (
            rng.dirichlet([0.7] * VOCAB, 3) * (rng.random((3, VOCAB)) < 0.7)
            + 1e-9 * np.eye(VOCAB)[number % VOCAB]
        )
        if number % 4 == 0:
            p = np.eye(VOCAB)[rng.integers(0, VOCAB, 3)]
        entries = int(rng.integers(1, VOCAB + 1))
        ids = np.array([rng.permutation(VOCAB)[:entries] for _ in range(2)])
        probs = (
            rng.integers(1, 5, (2, entries)) / 4
            if number % 3 == 0
            else rng.random((2, entries)) + 0.05
        )
        made.append((p / p.sum(1, keepdims=True), ids, probs.astype(np.float32)))
    return made


def _run(rule: Rule, p: Any, draft: Any, q: Any, one: float, two: float, emit: float) -> Any:
    return judged(rule, p, draft, q, [one, two], emit)


def dense(ids: np.ndarray, probs: np.ndarray) -> list[float]:
    total = sum(float(weight) for weight in probs)
    q = [0.0] * VOCAB
    for token, weight in zip(ids.tolist(), probs.tolist(), strict=True):
        q[token] = weight / total
    return q


def corrected(p: list[float], q: list[float]) -> list[float]:
    rest = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
    return [part / sum(rest) for part in rest] if sum(rest) > 0 else p


def test_the_rule_induces_its_law_on_every_table() -> None:
    for p, ids, probs in tables(12):
        q = [dense(ids[k], probs[k]) for k in range(2)]
        law = p.tolist()
        for first in ids[0].tolist():
            for second in ids[1].tolist():
                draft = [first, second]
                keep = [min(1.0, law[k][draft[k]] / q[k][draft[k]]) for k in range(2)]
                run = partial(_run, Rule.TOKEN, torch.from_numpy(p), draft, (ids, probs))

                # The share of coins that keep a token, and the two extreme coins.
                kept = sum(run(u, LAST, 0.5)[0] >= 1 for u in GRID)
                assert keep[0] * N - 1 <= kept <= keep[0] * N + 1
                assert (run(0.0, LAST, 0.5)[0] >= 1) == (keep[0] > 0.0)
                assert (run(LAST, LAST, 0.5)[0] >= 1) == (keep[0] == 1.0)
                if keep[0] > 0.0:
                    kept = sum(run(0.0, u, 0.5)[0] == 2 for u in GRID)
                    assert keep[1] * N - 1 <= kept <= keep[1] * N + 1
                    assert (run(0.0, 0.0, 0.5)[0] == 2) == (keep[1] > 0.0)
                    assert (run(0.0, LAST, 0.5)[0] == 2) == (keep[1] == 1.0)
                # The token the target adds, after 0, 1 and 2 kept ones.
                for accepted, coins, added in (
                    (0, (LAST, 0.0), corrected(law[0], q[0])),
                    (1, (0.0, LAST), corrected(law[1], q[1])),
                    (2, (0.0, 0.0), law[2]),
                ):
                    if any(run(*coins, u)[0] != accepted for u in (0.0, LAST)):
                        continue
                    drawn = [run(*coins, u) for u in GRID]
                    assert all(outcome[0] == accepted for outcome in drawn)
                    for token, share in enumerate(added):
                        times = sum(outcome[1] == token for outcome in drawn)
                        assert share * N - 1 <= times <= share * N + 1
                    for u in (0.0, LAST):
                        assert added[run(*coins, u)[1]] > 0.0


def test_the_block_rule_decides_as_the_paper_says_on_every_table() -> None:
    for p, ids, probs in tables(12):
        q, law = [dense(ids[k], probs[k]) for k in range(2)], p.tolist()
        for first in ids[0].tolist():
            for second in ids[1].tolist():
                one = min(1.0, law[0][first] / q[0][first])
                two = min(1.0, one * law[1][second] / q[1][second])
                left = sum(max(one * a - b, 0.0) for a, b in zip(law[1], q[1], strict=True))
                head = left / (left + 1.0 - one) if left + 1.0 - one > 1e-15 else 1.0
                chances = [head if one > 0.0 else 0.0, two]
                after = [
                    corrected(law[0], q[0]),
                    corrected([one * a for a in law[1]], q[1]),
                    law[2],
                ]
                of = (torch.from_numpy(p), (first, second), (ids, probs))
                run = partial(_run, Rule.BLOCK, *of)

                for coins in (
                    (0.0, 0.0),
                    (0.0, LAST),
                    (LAST, 0.0),
                    (LAST, LAST),
                    (0.3, 0.6),
                    (0.6, 0.3),
                ):
                    if any(
                        abs(u - chance) < 1e-9 and 0.0 < chance < 1.0
                        for u, chance in zip(coins, chances, strict=True)
                    ):
                        continue
                    heads = [u < chance for u, chance in zip(coins, chances, strict=True)]
                    want = 2 if heads[1] else 1 if heads[0] else 0
                    drawn = [run(*coins, u) for u in GRID]
                    assert all(accepted == want for accepted, _ in drawn)
                    total = sum(after[want])
                    for token, share in enumerate(after[want]):
                        times = sum(outcome[1] == token for outcome in drawn)
                        assert share / total * N - 1 <= times <= share / total * N + 1
