"""Whatever is drafted and however little of it is verified, the emitted tokens follow the target's
law exactly.

No sampling: `enumeration` integrates the coins of the real acceptance code, with the plans that
verifiers go by deciding how much of every block it sees.
"""

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from dspark.rounds.policy import Adaptive, Fixed, Policy, Threshold
from tests.unit.decoding.enumeration import (
    KINDS,
    BlockRounds,
    Prefix,
    Price,
    Rng,
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

Laws = tuple[dict[Tokens, float], dict[Tokens, float]]
TABLES_PER_CELL = 10
BOUND = 1e-9
RULES = {"token": TokenRounds, "block": BlockRounds}
POLICIES = ("fixed", "threshold", "adaptive", "adaptive, by older rounds")
CELLS = list(itertools.product(POLICIES, RULES, sorted(KINDS)))


def policy_of(name: str, rng: Rng) -> Policy:
    match name:
        case "fixed":
            return Fixed(int(rng.integers(1, 4)))
        case "threshold":
            return Threshold(float(rng.choice([0.3, 0.5, 0.9])))
        case _:
            return Adaptive()


def found(policy: str, rule: str, kind: str, seed: int, counts: Counter[int]) -> Laws:
    """What is emitted on one table, and the target's own law; counts: the lengths verified."""
    world = random_world(kind, seed)
    plan = planned(policy, world, np.random.default_rng((seed, 1)), counts)
    return emitted(RULES[rule](world), *plan), exact(world)


def found_coupled(policy: str, seed: int, counts: Counter[int]) -> Laws:
    """The same of the coupled rule."""
    rng = np.random.default_rng((seed, 4))
    world = dyadic_world(rng)
    return coupled_law(world, 8, *planned(policy, world, rng, counts)), exact(world)


def planned(policy: str, world: World, rng: Rng, lengths: Counter[int]) -> tuple[Prefix, Price]:
    """Counts how often the policy chose each length."""
    prefix = real_plan(policy_of(policy, rng), world, rng)

    def counted(*seen: Any) -> int:
        lengths[verified := prefix(*seen)] += 1
        return verified

    return counted, older_price(rng) if "older" in policy else lambda _: 0


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


@pytest.mark.parametrize("policy", POLICIES)
def test_coupled_output_distribution_equals_target(policy: str) -> None:
    lengths: Counter[int] = Counter()
    for seed in range(8):
        assert variation(*found_coupled(policy, seed, lengths)) <= BOUND
    assert policy == "fixed" or {0, 1, 2, 3} <= set(lengths)


def test_the_coupled_rule_is_immune_to_a_plan_that_peeks() -> None:
    def peeking(block: Tokens, *_: object) -> int:
        return next((k for k, token in enumerate(block) if token == 0), len(block))

    for seed in range(4):
        world = dyadic_world(np.random.default_rng((seed, 5)))
        assert variation(coupled_law(world, 8, peeking), exact(world)) <= BOUND
        found = variation(emitted(TokenRounds(world), peeking), exact(world))
        assert found > 1e-3, "a ratio rule is not"


def test_the_block_rule_never_keeps_fewer_tokens_than_the_token_rule() -> None:
    more = 0
    for kind, seed in itertools.product(sorted(KINDS), range(10)):
        world = random_world(kind, seed, [(4, 3, 1)])
        kept = {}
        for name, rounds in RULES.items():
            made = rounds(world)
            kept[name] = sum(
                chance * share * len(tokens)
                for block, chance, _ in made.blocks(())
                for tokens, share in made.outcomes((), block)
            )
        assert kept["block"] >= kept["token"] - 1e-12
        more += kept["block"] > kept["token"] + 1e-6
    assert more > 20
