"""The ratio rules that are deployed, driven over grids of coins: they decide and draw as the papers
say.

The expected laws are written out here on plain floats. `tests/mutation` puts bugs into the source
and expects these tests, among others, to fail.
"""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import torch

from dspark.types import Rule
from tests.forced_coins import judged

N = 32
LAST = 1.0 - 2.0**-53
GRID = [step / N for step in range(N)]
VOCAB = 4
Law = list[float]
Run = Callable[[float, float, float], tuple[int, int]]


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


def dense(ids: np.ndarray, probs: np.ndarray) -> list[float]:
    total = sum(float(weight) for weight in probs)
    q = [0.0] * VOCAB
    for token, weight in zip(ids.tolist(), probs.tolist(), strict=True):
        q[token] = weight / total
    return q


def corrected(p: list[float], q: list[float]) -> list[float]:
    rest = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
    return [part / sum(rest) for part in rest] if sum(rest) > 0 else p


def blocks(rule: Rule) -> Iterator[tuple[list[Law], list[Law], list[int], Run]]:
    """Of every table: p, q, each block of two drafted tokens, and what the rule makes of its two
    coins and the one that adds a token."""
    for p, ids, probs in tables(12):
        q = [dense(ids[k], probs[k]) for k in range(2)]
        for first, second in itertools.product(*ids.tolist()):
            draft, of = [first, second], (torch.from_numpy(p), [first, second], (ids, probs))
            yield p.tolist(), q, draft, lambda *u, of=of: judged(rule, *of, u[:2], u[2])


def test_the_rule_induces_its_law_on_every_table() -> None:
    for law, q, draft, run in blocks(Rule.TOKEN):
        keep = [min(1.0, law[k][draft[k]] / q[k][draft[k]]) for k in range(2)]

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
            follows([run(*coins, u) for u in GRID], accepted, added)
            for u in (0.0, LAST):
                assert added[run(*coins, u)[1]] > 0.0


def test_the_block_rule_decides_as_the_paper_says_on_every_table() -> None:
    for law, q, (first, second), run in blocks(Rule.BLOCK):
        one = min(1.0, law[0][first] / q[0][first])
        two = min(1.0, one * law[1][second] / q[1][second])
        left = sum(max(one * a - b, 0.0) for a, b in zip(law[1], q[1], strict=True))
        head = left / (left + 1.0 - one) if left + 1.0 - one > 1e-15 else 1.0
        chances = [head if one > 0.0 else 0.0, two]
        carried = [one * a for a in law[1]]
        after = [corrected(law[0], q[0]), corrected(carried, q[1]), law[2]]
        for coins in (*itertools.product((0.0, LAST), repeat=2), (0.3, 0.6), (0.6, 0.3)):
            of_each = list(zip(coins, chances, strict=True))
            if any(abs(u - chance) < 1e-9 and 0.0 < chance < 1.0 for u, chance in of_each):
                continue
            heads = [u < chance for u, chance in of_each]
            want = 2 if heads[1] else 1 if heads[0] else 0
            total = sum(after[want])
            added = [share / total for share in after[want]]
            follows([run(*coins, u) for u in GRID], want, added)


def follows(drawn: list[tuple[int, int]], accepted: int, law: Law) -> None:
    """So many were kept every time, and what was added has this law."""
    assert all(kept == accepted for kept, _ in drawn)
    for token, share in enumerate(law):
        times = sum(added == token for _, added in drawn)
        assert share * N - 1 <= times <= share * N + 1
