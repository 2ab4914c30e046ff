"""What a `RoundLoop` reports follows the target's law exactly, whatever is planned and however far
it runs ahead.

No sampling: `round_walk` drives the real loop through every block, every coin and every report, two
sequences at a time, so that the joint law has to be the product.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from dspark.rounds import passes
from dspark.rounds.loop import RoundLoop
from dspark.rounds.plan import NO_CAP, BlockTerms, Plan, PlanKind, prefixes
from dspark.types import Rule
from tests.unit.decoding.enumeration import (
    KINDS,
    CoupledRounds,
    RatioRounds,
    Rng,
    Rounds,
    Rows,
    Tokens,
    World,
    build,
    dyadic_world,
    exact,
    tables,
    variation,
)
from tests.unit.decoding.round_walk import Confidences, Endless, Setting, Walk

BOUND = 1e-9
RULES = {"token": Rule.TOKEN, "block": Rule.BLOCK}
TERMS = {
    "off": BlockTerms(PlanKind.OFF),
    "fixed": BlockTerms(PlanKind.FIXED, 2),
    "threshold": BlockTerms(PlanKind.THRESHOLD, 2, 0.5),
    "price": BlockTerms(PlanKind.PRICE, 2, 0.45),
    "capped": BlockTerms(PlanKind.PRICE, 2, 0.2, cap=2),
}


def worlds(kind: str, seed: int) -> list[World]:
    """Two sequences of two tokens; confidences depend on what was drafted before, and on nothing
    true."""
    made = []
    for place, horizon in enumerate((4, 3)):
        rng = np.random.default_rng((seed, place))

        def rows(contexts: int, slots: int, rng: Rng = rng) -> Rows:
            return *tables(kind, rng, contexts, slots, 2), rng.choice([0.3, 0.6, 0.95], slots)

        made.append(build(2, 2, horizon, rows))
    return made


def plans(terms: BlockTerms, window: int) -> Setting:
    """Price and cap follow the confidences of the last reported round; other terms stay."""
    first = Plan(terms, window=window)

    def then(confidences: Confidences) -> Plan:
        if terms.kind is not PlanKind.PRICE:
            return first
        kind = round(100 * sum(map(sum, confidences))) % 4
        if kind == 3:
            return Plan(BlockTerms(PlanKind.OFF), window=window)
        cap = NO_CAP if terms.cap == NO_CAP else 1 + kind
        return Plan(terms._replace(price=(0.2, 0.5, 0.92)[kind], cap=cap), window=window)

    return Setting(first, then)


def walked(made: Sequence[World], rule: str, setting: Setting) -> tuple[float, set[int]]:
    """Total variation to the target's own joint law, and the prefixes that were chosen."""
    laws: list[Rounds] = [RatioRounds(world, RULES[rule]) for world in made]
    walk = Walk(laws, setting, lambda: RoundLoop(Endless()))
    found = walk.run()
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-9)
    first, second = (exact(world) for world in made)
    product = {
        (a, b): pa * pb for (a, pa), (b, pb) in itertools.product(first.items(), second.items())
    }
    return variation(found, product), walk.prefixes


@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("terms", TERMS)
def test_what_is_reported_follows_the_target_s_law_exactly(
    terms: str, rule: str, window: int
) -> None:
    seen: set[int] = set()
    for kind, seed in (*((kind, 1) for kind in KINDS), ("logits", 2), ("ties", 2)):
        off, chosen = walked(worlds(kind, seed), rule, plans(TERMS[terms], window))
        assert off <= BOUND
        seen |= chosen
    assert seen == ({0} if terms == "off" else {0, 1, 2}), "every length occurs"


@pytest.mark.parametrize("rule", RULES)
def test_rows_of_unlike_worth_that_compete_for_one_cap_keep_their_joint_law(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlike(blocks: Sequence[Sequence[float]], terms: Sequence[BlockTerms]) -> list[int]:
        return prefixes(
            blocks, [each._replace(weight=1.0 + 0.3 * row) for row, each in enumerate(terms)]
        )

    monkeypatch.setattr(passes, "prefixes", unlike)
    for kind in KINDS:
        assert walked(worlds(kind, 1), rule, plans(TERMS["capped"], 0))[0] <= BOUND


def test_a_plan_that_knows_the_block_it_comes_before_does_not_meet_it() -> None:
    """Of a coordinator that would verify nothing where the second slot is sure."""
    first = Plan(BlockTerms(PlanKind.PRICE, 2, 0.0))
    never = Plan(BlockTerms(PlanKind.PRICE, 2, 2.0))

    def meanwhile(confidences: Confidences) -> Plan:
        return never if any(len(each) > 1 and each[1] > 0.5 for each in confidences) else first

    peeking = Setting(first, lambda _: first, meanwhile)
    assert walked(worlds("logits", 1), "token", peeking)[0] <= BOUND


@pytest.mark.parametrize("rule", RULES)
def test_whoever_is_taken_away_for_what_its_pass_says_has_it_reported(rule: str) -> None:
    first = plans(TERMS["fixed"], 2)
    for least in (1, 2):
        setting = Setting(
            first.first, first.then, settles=lambda count, least=least: count >= least
        )
        assert walked(worlds("logits", 2), rule, setting)[0] <= BOUND


# The coupled rule, which has no coins.


@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("terms", ["fixed", "threshold", "price"])
def test_the_coupled_rule_says_the_target_s_tokens_by_any_plan(terms: str, window: int) -> None:
    world = dyadic_world(np.random.default_rng(3), shares=4, block=2, horizon=3)
    one = CoupledRounds(world, 4)
    law: dict[Tokens, float] = {}
    for share in one.noises():
        ((said,),) = Walk([one], plans(TERMS[terms], window), lambda: RoundLoop(Endless())).run()
        law[said] = law.get(said, 0.0) + share
    assert variation(law, exact(world)) <= BOUND


def test_no_cap_is_no_limit() -> None:
    assert sum(prefixes([[1.0] * 8] * 64, [BlockTerms(PlanKind.FIXED, 8)] * 64)) == 512 < NO_CAP
