"""Bugs that really happened elsewhere, put in the place of the real part: the enumeration must see
every one.

The parts are those of `enumeration.Machine`. `test_forced_coins` does the same to the source of the
rule itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from enumeration import Machine, World, emitted, exact, random_world, real_plan, variation

from dspark.rounds.policy import Adaptive
from dspark.rounds.survival import survival

KINDS = ("logits", "loose", "ties", "zeros")
SEEN = 1e-6


def normalised(weights: np.ndarray) -> np.ndarray:
    return weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300)


def best_of_all() -> Callable[..., int]:
    """The length of highest expected rate over a stair of the cost: it looks at tokens it decides
    about.

    On a convex curve it would find what early stop finds, and no harm would come of it.
    """

    def curve(tokens: np.ndarray) -> np.ndarray:
        return np.interp(tokens, [1, 2, 3, 4], [1.0, 2.0, 2.2, 2.4])

    def prefix(_, __, confidence, ___):  # type: ignore[no-untyped-def]
        alive = survival(np.array([confidence]), np.array([len(confidence)]))[0]
        committed = 1.0 + np.concatenate(([0.0], np.cumsum(alive)))
        return int(np.argmax(committed / curve(1.0 + np.arange(len(committed)))))

    return prefix


def of_previous_slot(world: World) -> np.ndarray:
    stale = world.q.copy()
    for (committed, drafted), row in world.draft.items():
        stale[row] = world.q[world.draft[committed, drafted[:-1]]]
    return stale


def redrawn_once(world: World) -> np.ndarray:
    """The law of a drafter that draws again when it does not like token 0."""
    disliked = world.q[:, :1]
    law = world.q * (1.0 + disliked)
    law[:, 0] = disliked[:, 0] ** 2
    return law


MUTANTS: dict[str, Callable[[Machine], Machine]] = {
    "the correction is drawn from p": lambda real: replace(real, residual=lambda p, q: p),
    "the residual is not clipped": lambda real: replace(
        real,
        residual=lambda p, q: torch.nan_to_num((p - q).abs() / (p - q).abs().sum(-1, keepdim=True)),
    ),
    "q is cut but not renormalised": lambda real: replace(real, q_seen=lambda world: world.q * 0.9),
    "a coin of 16 bits is compared with <=": lambda real: replace(
        real, accept=lambda p, q: np.maximum(real.accept(p, q), 2.0**-16)
    ),
    "the ratio is relaxed by 1 %": lambda real: replace(
        real, accept=lambda p, q: np.minimum(1.0, 1.01 * real.accept(p, q))
    ),
    "q is clamped in the ratio": lambda real: replace(
        real, accept=lambda p, q: np.minimum(1.0, p / np.maximum(q, 0.02))
    ),
    "everything is accepted": lambda real: replace(real, accept=lambda p, q: np.ones_like(p)),
    "q is that of the slot before": lambda real: replace(real, q_seen=of_previous_slot),
    "q is that of another sequence": lambda real: replace(
        real, q_seen=lambda world: np.roll(world.q, 7, axis=0)
    ),
    "the draft is drawn at another temperature": lambda real: replace(
        real, draft=lambda world: normalised(world.q ** (1 / 0.9))
    ),
    "the draft is drawn in bfloat16": lambda real: replace(
        real, draft=lambda world: normalised(torch.from_numpy(world.q).bfloat16().double().numpy())
    ),
    "a draft is drawn again when disliked": lambda real: replace(real, draft=redrawn_once),
    "the bonus is off by one row": lambda real: replace(
        real, bonus=lambda world, committed, kept: world.target[committed + kept[:-1]]
    ),
    "the scheduler searches all lengths": lambda real: replace(real, prefix=best_of_all()),
    "the cut looks at the token itself": lambda real: replace(
        real,
        prefix=lambda _, block, *__: next(
            (k for k, token in enumerate(block) if token == 0), len(block)
        ),
    ),
    "late blocks are dropped by what is in them": lambda real: replace(
        real, prefix=lambda _, block, *__: 0 if block[-1] == 0 else len(block)
    ),
}


def worst_variation(mutate: Callable[[Machine], Machine]) -> float:
    """Over forty tables."""
    worst = 0.0
    for kind in KINDS:
        for seed in range(10):
            world = random_world(kind, seed)
            real = Machine(real_plan(Adaptive(), world, np.random.default_rng((seed, 3))))
            law = emitted(world, mutate(real))
            worst = max(worst, variation(law, exact(world)))
    return worst


def test_the_real_parts_pass_on_the_tables_that_judge_the_mutants() -> None:
    assert worst_variation(lambda real: real) <= 1e-9


@pytest.mark.parametrize("bug", MUTANTS)
def test_the_enumeration_sees(bug: str) -> None:
    assert worst_variation(MUTANTS[bug]) > SEEN
