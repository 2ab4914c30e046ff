"""The rule that is deployed, driven over grids of coins: its induced law is the token rule's, to one grid step.

The expected law is written out here on plain floats. The same check must fail on copies of the source with a bug put
in, so it is known to look where it matters.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dspark.decoding import acceptance, slots
from dspark.decoding.acceptance import token_rule

N = 32
LAST = 1.0 - 2.0**-53
GRID = [step / N for step in range(N)]
VOCAB = 4

TokenRule = Callable[..., tuple[int, int]]


def tables(count: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(p [3, V], q ids [2, K], q probs [2, K] float32 with any sum), with zeros, ties and disjoint supports."""
    rng = np.random.default_rng(11)
    made = []
    for number in range(count):
        p = rng.dirichlet([0.7] * VOCAB, 3) * (rng.random((3, VOCAB)) < 0.7) + 1e-9 * np.eye(VOCAB)[number % VOCAB]
        if number % 4 == 0:
            p = np.eye(VOCAB)[rng.integers(0, VOCAB, 3)]
        entries = int(rng.integers(1, VOCAB + 1))
        ids = np.array([rng.permutation(VOCAB)[:entries] for _ in range(2)])
        probs = rng.integers(1, 5, (2, entries)) / 4 if number % 3 == 0 else rng.random((2, entries)) + 0.05
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


def check(rule: TokenRule, count: int) -> None:
    """Raises AssertionError unless `rule` induces the token rule's law on `count` tables."""
    for p, ids, probs in tables(count):
        q = [dense(ids[k], probs[k]) for k in range(2)]
        law = p.tolist()
        for first in ids[0].tolist():
            for second in ids[1].tolist():
                draft = [first, second]
                keep = [min(1.0, law[k][draft[k]] / q[k][draft[k]]) for k in range(2)]

                def run(one: float, two: float, emit: float, draft: list[int] = draft) -> tuple[int, int]:
                    return rule(torch.from_numpy(p), draft, (ids, probs), [one, two], emit)  # noqa: B023

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


def test_the_rule_induces_its_law_on_every_table() -> None:
    check(token_rule, 12)


SOURCE_MUTANTS = {
    "coins that equal the ratio accept": ("(accept_u < accept_probability", "(accept_u <= accept_probability"),
    "the correction is drawn from p": ("rest = (p - q).clamp_(min=0.0)", "rest = p.clone()"),
    "the correction is drawn from q": ("rest = (p - q).clamp_(min=0.0)", "rest = (q - p).clamp_(min=0.0)"),
    "the ratio is upside down": ("np.divide(p, q, out=kept, where=q > p)", "np.divide(q, p, out=kept, where=p > q)"),
    "q is not divided by its sum": (
        "probs=weights / np.bincount(slot, weights, minlength=total)[slot]",
        "probs=weights",
    ),
    "a kept token after a rejected one counts": (
        "slot < end and sent[slot] and kept[slot]",
        "slot < end and sent[slot] and any(kept[slot:end])",
    ),
    "the bonus is drawn like a correction": (
        "rejected.append(slot if slot < end and sent[slot] else None)",
        "rejected.append(min(slot, end - 1))",
    ),
    "the row before is used": ("_emit(target_probs[kept]", "_emit(target_probs[[max(kept[0] - 1, 0)]]"),
}


@pytest.mark.parametrize("bug", SOURCE_MUTANTS)
def test_the_check_fails_when(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = SOURCE_MUTANTS[bug]
    (module,) = [m for m in (acceptance, slots) if right in Path(m.__file__).read_text(encoding="utf-8")]
    source = Path(module.__file__).read_text(encoding="utf-8")
    assert source.count(right) == 1
    path = tmp_path / "mutant.py"
    path.write_text(source.replace(right, wrong), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("mutant", path)
    assert spec is not None
    assert spec.loader is not None
    mutant = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mutant", mutant)
    spec.loader.exec_module(mutant)
    if module is slots:
        monkeypatch.setattr(acceptance, "Slots", mutant.Slots)
    with pytest.raises(AssertionError):
        check(token_rule if module is slots else mutant.token_rule, 12)
