"""Whatever is drafted and however little of it is verified, the emitted tokens follow the target's
law exactly.

No sampling: `enumeration` integrates the coins of the real acceptance code, with the plans that
verifiers go by deciding how much of every block it sees.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from dspark.rounds.plan import NO_CAP, BlockTerms, PlanKind, prefixes
from dspark.types import Rule
from tests.unit.decoding.enumeration import (
    KINDS,
    Prefix,
    Price,
    RatioRounds,
    Rng,
    Rows,
    Sure,
    Tokens,
    World,
    build,
    confidences,
    coupled_law,
    dyadic_world,
    emitted,
    exact,
    tables,
    variation,
)

Laws = tuple[dict[Tokens, float], dict[Tokens, float]]
TABLES_PER_CELL = 10
BOUND = 1e-9
RULES = {"token": Rule.TOKEN, "block": Rule.BLOCK}
PRICES = (0.35, 0.0, 0.1, 0.6, 0.95)
# vocabulary, slots of a block, tokens looked at
SHAPES = ((3, 3, 4), (3, 3, 4), (3, 2, 5), (4, 2, 4))
POLICIES = ("fixed", "threshold", "adaptive", "adaptive, by older rounds")
CELLS = list(itertools.product(POLICIES, RULES, sorted(KINDS)))


def found(policy: str, rule: str, kind: str, seed: int, counts: Counter[int]) -> Laws:
    """What is emitted on one table, and the target's own law; counts: the lengths verified."""
    world = random_world(kind, seed)
    plan = planned(policy, world, np.random.default_rng((seed, 1)), counts)
    return emitted(RatioRounds(world, RULES[rule]), *plan), exact(world)


def found_coupled(policy: str, seed: int, counts: Counter[int]) -> Laws:
    """The same of the coupled rule."""
    rng = np.random.default_rng((seed, 4))
    world = dyadic_world(rng)
    return coupled_law(world, 8, *planned(policy, world, rng, counts)), exact(world)


def random_world(kind: str, seed: int, shapes: Sequence[tuple[int, int, int]] = SHAPES) -> World:
    """One of `KINDS`. Confidences depend on the drafted prefix, and not at all on p and q."""
    rng = np.random.default_rng(seed)
    vocab, block, horizon = shapes[int(rng.integers(0, len(shapes)))]

    def rows(contexts: int, slots: int) -> Rows:
        return *tables(kind, rng, contexts, slots, vocab), confidences(rng, slots)

    return build(vocab, block, horizon, rows)


def planned(policy: str, world: World, rng: Rng, lengths: Counter[int]) -> tuple[Prefix, Price]:
    """What a verifier verifies by a plan's terms, of a random weight, half the time beside a busy
    neighbour and under a cap; counts how often it is each length. By older rounds the price
    follows from their confidences: any function of them will do."""
    beside = rng.random((rng.integers(0, 2), world.block)).tolist()
    weight, salt = float(rng.uniform(0.5, 2.0)), float(rng.random())
    cap = int(rng.choice([NO_CAP, int(rng.integers(0, 2 * world.block))]))
    match policy:
        case "fixed":
            slots = min(int(rng.integers(1, 4)), world.block)
            terms = BlockTerms(PlanKind.FIXED, slots, 0.0, weight, NO_CAP)
        case "threshold":
            at = float(rng.choice([0.3, 0.5, 0.9]))
            terms = BlockTerms(PlanKind.THRESHOLD, world.block, at, weight, cap)
        case _:
            terms = BlockTerms(PlanKind.PRICE, world.block, PRICES[0], weight, cap)

    @cache
    def verified(sure: Sure, price: int) -> int:
        mine = terms._replace(price=PRICES[price]) if terms.kind is PlanKind.PRICE else terms
        blocks = [list(sure[: terms.slots]), *beside]
        return prefixes(blocks, [mine, *[mine._replace(weight=1.0)] * len(beside)])[0]

    def counted(_: Tokens, sure: Sure, price: int) -> int:
        lengths[chosen := verified(sure, price)] += 1
        return chosen

    def older(sure: Sure) -> int:
        return int(1e6 * (sum(sure) + salt)) % len(PRICES)

    return counted, older if "older" in policy else lambda _: 0


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
        found = variation(emitted(RatioRounds(world, Rule.TOKEN), peeking), exact(world))
        assert found > 1e-3, "a ratio rule is not"


def test_the_block_rule_never_keeps_fewer_tokens_than_the_token_rule() -> None:
    more = 0
    for kind, seed in itertools.product(sorted(KINDS), range(10)):
        world = random_world(kind, seed, [(4, 3, 1)])
        kept = {}
        for name, rule in RULES.items():
            made = RatioRounds(world, rule)
            kept[name] = sum(
                chance * share * len(tokens)
                for block, chance, _ in made.blocks(())
                for tokens, share in made.outcomes((), block)
            )
        assert kept["block"] >= kept["token"] - 1e-12
        more += kept["block"] > kept["token"] + 1e-6
    assert more > 20
