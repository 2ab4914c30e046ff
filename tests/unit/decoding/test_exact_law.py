"""Whatever is drafted and however little of it is verified, the emitted tokens follow the target's
law exactly.

No sampling: `enumeration` integrates the coins of the real acceptance code, with the plans that
verifiers go by deciding how much of every block it sees.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from enumeration import (
    KINDS,
    BlockRounds,
    Machine,
    TokenRounds,
    Tokens,
    World,
    coupled_law,
    dyadic_world,
    emitted,
    exact,
    older_price,
    random_world,
    real_plan,
    variation,
)

from dspark.rounds.policy import Adaptive, Fixed, Policy, Threshold

Laws = tuple[dict[Tokens, float], dict[Tokens, float]]
TABLES_PER_CELL = 10
BOUND = 1e-9


def policy_of(name: str, rng: np.random.Generator) -> Policy:
    match name:
        case "fixed":
            return Fixed(int(rng.integers(1, 4)))
        case "threshold":
            return Threshold(float(rng.choice([0.3, 0.5, 0.9])))
        case _:
            return Adaptive()


RULES = {"token": TokenRounds, "block": BlockRounds}
CELLS = [
    (policy, rule, kind)
    for policy in ("fixed", "threshold", "adaptive", "adaptive, by older rounds")
    for rule in RULES
    for kind in sorted(KINDS)
]


def found(policy: str, rule: str, kind: str, seed: int, counts: Counter[int]) -> Laws:
    """What is emitted on one table, and the target's own law; counts: the lengths verified."""
    world = random_world(kind, seed)
    machine = machine_of(policy, world, np.random.default_rng((seed, 1)), counts)
    return emitted(world, replace(machine, rounds=RULES[rule])), exact(world)


def found_coupled(policy: str, seed: int, counts: Counter[int]) -> Laws:
    """The same of the coupled rule."""
    rng = np.random.default_rng((seed, 4))
    world = dyadic_world(rng)
    return coupled_law(world, machine_of(policy, world, rng, counts), 8), exact(world)


def machine_of(
    policy: str, world: World, rng: np.random.Generator, lengths: Counter[int]
) -> Machine:
    """Counts how often the policy chose each length."""
    prefix = real_plan(policy_of(policy, rng), world, rng)

    def counted(*seen: Any) -> int:
        lengths[verified := prefix(*seen)] += 1
        return verified

    return Machine(counted, price=older_price(rng)) if "older" in policy else Machine(counted)


@pytest.mark.parametrize(("policy", "rule", "kind"), CELLS)
def test_output_distribution_equals_target(policy: str, rule: str, kind: str) -> None:
    lengths: Counter[int] = Counter()
    worst = 0.0
    for seed in range(TABLES_PER_CELL):
        law, expected = found(policy, rule, kind, seed, lengths)
        assert sum(law.values()) == pytest.approx(1.0, abs=1e-12)
        worst = max(worst, variation(law, expected))
        assert not any(chance and not expected.get(word) for word, chance in law.items()), (
            "a token that the target excludes"
        )
    assert worst <= BOUND
    if policy != "fixed":
        assert {0, 1, 2, 3} <= set(lengths), "the tables must make plans use every length"


@pytest.mark.parametrize("policy", ["fixed", "threshold", "adaptive", "adaptive, by older rounds"])
def test_coupled_output_distribution_equals_target(policy: str) -> None:
    lengths: Counter[int] = Counter()
    for seed in range(8):
        assert variation(*found_coupled(policy, seed, lengths)) <= BOUND
    assert policy == "fixed" or {0, 1, 2, 3} <= set(lengths)


def test_the_coupled_rule_is_immune_to_a_plan_that_peeks() -> None:
    for seed in range(4):
        world = dyadic_world(np.random.default_rng((seed, 5)))
        peeking = Machine(
            lambda _, block, *__: next(
                (k for k, token in enumerate(block) if token == 0), len(block)
            )
        )
        assert variation(coupled_law(world, peeking, 8), exact(world)) <= BOUND
        assert variation(emitted(world, peeking), exact(world)) > 1e-3, "a ratio rule is not"


@pytest.mark.parametrize("policy", ["fixed", "threshold", "adaptive"])
def test_the_coupled_rule_is_immune_to_drafts_that_have_nothing_to_do_with_q(policy: str) -> None:
    for seed in range(4):
        rng = np.random.default_rng((seed, 11))
        world = dyadic_world(rng)
        certain = np.eye(2)[rng.integers(0, 2, len(world.q))]
        drawn = certain if seed % 2 else rng.dirichlet([0.1, 0.1], len(world.q))
        prefix = real_plan(policy_of(policy, rng), world, rng)
        lying = Machine(prefix, draft=lambda _, drawn=drawn: drawn)
        assert variation(coupled_law(world, lying, 8), exact(world)) <= BOUND


def test_the_block_rule_never_keeps_fewer_tokens_than_the_token_rule() -> None:
    more = 0
    for kind, seed in itertools.product(sorted(KINDS), range(10)):
        world = random_world(kind, seed, [(4, 3, 1)])
        machine = Machine(lambda *_, full=world.block: full)
        kept = {}
        for name, rounds in RULES.items():
            made = rounds(world, machine)
            kept[name] = sum(
                chance * share * len(tokens)
                for block, chance, _ in made.blocks(())
                for tokens, share in made.outcomes((), block)
            )
        assert kept["block"] >= kept["token"] - 1e-12
        more += kept["block"] > kept["token"] + 1e-6
    assert more > 20


def test_a_length_that_depends_on_earlier_drafted_tokens_alone_is_harmless() -> None:
    # Stronger than any confidence: slot k is verified by decree of x_<k.
    for kind, seed in itertools.product(sorted(KINDS), range(5)):
        world = random_world(kind, seed)

        def prefix(_, block, *__, size=world.block):  # type: ignore[no-untyped-def]
            return next((k for k in range(size) if sum(block[:k]) % 3 == 2), size)

        for rounds in RULES.values():
            assert variation(emitted(world, Machine(prefix, rounds=rounds)), exact(world)) <= BOUND
