"""Plans against what no plan can do: Algorithm 1 run on the live confidences of every round, see
`rounds_of`."""

from pathlib import Path

import numpy as np
import pytest

from coordinator.planning.options import PlannedLane
from dspark.rounds.plan import PlanKind, prefixes
from dspark.synthetic.spec import load_spec
from tests.unit.planning.rounds_of import (
    CONTEXT,
    COSTS,
    HARD,
    MIXED,
    SLOTS,
    Costs,
    lane,
    learn,
    live,
    planned,
    planner_of,
)

ROOT = Path(__file__).parents[3]
PAPER = load_spec(ROOT / "benchmarks/synthetic/paper.yaml")  # the simulator's
HOPS_S = 2e-3  # of a round
RECORDED = ROOT / "tests/data/smollm2_confidences.npy"  # by tests.record_confidences
# The shipped pair on two cores as its services measured themselves: 14, 20 and 101 ms for 1, 8 and
# 64 tokens, 8 and 27 ms for the blocks of 1 and 8 sequences.
COSTS |= {
    "two cores": Costs(
        lambda t: 12.7e-3 + 1.35e-3 * t, lambda n, k: 2.8e-3 + 0.35e-3 * k + 2.65e-3 * n, 1.5e-3
    ),
    "simulated": Costs(
        lambda t: PAPER.verify.seconds(t, CONTEXT),
        lambda n, _: PAPER.draft.seconds(n, CONTEXT),
        HOPS_S,
    ),
}
ROUNDS = {1: 2000, 8: 200, 64: 80, 256: 40}


@pytest.mark.parametrize(
    ("costs", "kinds", "streams", "lengths"),
    [
        *((costs, MIXED, streams, (5, 7)) for costs in ("gpu", "simulated") for streams in ROUNDS),
        ("small gpu", MIXED, 256, (0, 5, 7)),
        ("small gpu", HARD, 8, (0, 2, 4)),
        ("gpu", HARD, 1, (0, 2, 3, 4)),
        ("cpu", MIXED, 1, (0, 3, 5, 7)),
        ("cpu", MIXED, 8, (0, 2, 4)),
        ("cpu", HARD, 64, (0, 2)),
    ],
)
def test_plans_bring_nearly_what_algorithm_1_would_live(
    costs: str, kinds: tuple[float, ...], streams: int, lengths: tuple[int, ...]
) -> None:
    rounds = ROUNDS[streams]
    seeds = range(3 if streams == 1 else 1)  # of one stream the first blocks decide much
    made = sum(planned(COSTS[costs], kinds, streams, rounds, seed=seed)[0] for seed in seeds)
    best = max(
        sum(live(COSTS[costs], kinds, streams, rounds, slots, seed=seed) for seed in seeds)
        for slots in lengths
    )
    assert made >= 0.98 * best


@pytest.mark.parametrize("streams", [1, 8, 64])
@pytest.mark.parametrize("costs", ["gpu", "small gpu", "two cores"])
def test_plans_bring_nearly_what_algorithm_1_would_on_what_the_shipped_drafter_said(
    costs: str, streams: int
) -> None:
    recorded = np.load(RECORDED).astype(np.float64)
    rounds = {1: 2048, 8: 1000, 64: 800}[streams]
    made, _, _ = planned(COSTS[costs], HARD, streams, rounds, recorded=recorded)
    best = max(
        live(COSTS[costs], HARD, streams, rounds, slots, recorded=recorded)
        for slots in range(SLOTS + 1)
    )
    assert made >= 0.98 * best


def test_where_drafting_does_not_pay_nearly_nothing_is_drafted() -> None:
    _, _, slots = planned(COSTS["cpu"], HARD, 8, 200)
    assert np.mean(np.array(slots[50:]) == 0) > 0.85


# A plain round 14 ms, a drafted one 22 for half a token more: drafts lose 8 %.
CLOSE = Costs(lambda t: 13e-3 + 1e-3 * t, lambda n, k: 2.7e-3 + 0.25e-3 * k, 3.4e-3)


@pytest.mark.parametrize("seed", range(3))
def test_stalls_turn_no_lane_to_drafts_that_do_not_pay(seed: int) -> None:
    _, _, slots = planned(CLOSE, HARD[:1], 1, 600, seed=seed, stalls=60)
    assert np.mean(np.array(slots[100:]) == 0) > 0.85


@pytest.mark.parametrize(("round_s", "slots"), [(14.9e-3, 0), (14.6e-3, 1)])
def test_a_plan_stays_where_another_would_be_hardly_better(round_s: float, slots: int) -> None:
    """A plain round takes 10 ms: half a token more is 0.7 or 2.7 % better."""
    hop_s = round_s - 12.6e-3
    costs = Costs(lambda t: 10e-3 + 5e-3 * max(t - 2, 0), lambda n, k: 2.6e-3, hop_s)
    planner = planner_of(costs)

    def run(outcomes: tuple[int, ...], rounds: int) -> None:
        said = np.array([[sum(outcomes) / len(outcomes), *[0.0] * (SLOTS - 1)]])
        for number in range(rounds):
            accepted = outcomes[number % len(outcomes)]
            learn(planner, said, 1, accepted, (10e-3, round_s, 2.6e-3))
            planner.next(lane(1, cohorts=1))

    run((0,) * 19 + (1,), 200)
    assert planner.home == (0, 1)
    run((1, 0), 800)
    assert planner.home[0] == slots


@pytest.mark.parametrize("switching", [1.0, 1.35])
def test_plain_rounds_are_tried_too_where_they_were_thought_too_dear(switching: float) -> None:
    dear = Costs(lambda t: 1.3 * CLOSE.verify_s(t), CLOSE.draft_s, CLOSE.hop_s)
    _, planner, slots = planned(CLOSE, HARD[:1], 1, 900, announced=dear, switching=switching)
    assert planner.cost.plain.value == pytest.approx(1 / 1.3, rel=0.05)
    assert np.mean(np.array(slots[600:]) == 0) > 0.7


def test_a_machine_that_became_slower_than_it_was_measured_is_planned_for_as_it_is() -> None:
    now = COSTS["gpu"]
    announced = Costs(
        lambda t: now.verify_s(t) / 2.0, lambda n, k: now.draft_s(n, k) / 3.0, now.hop_s
    )
    made, planner, _ = planned(now, MIXED, 64, 120, announced=announced)
    assert planner.cost.drafted.value == pytest.approx(2.0, rel=0.05)
    assert planner.cost.drafting.value == pytest.approx(3.0, rel=0.05)
    assert made >= 0.97 * live(now, MIXED, 64, 120, SLOTS)


def test_a_plan_two_rounds_old_is_hardly_worse() -> None:
    made, _, _ = planned(COSTS["gpu"], MIXED, 8, 200, lag=2)
    assert made >= 0.98 * live(COSTS["gpu"], MIXED, 8, 200, SLOTS)


def test_a_drafter_that_promises_too_much_is_found_out() -> None:
    _, planner, _ = planned(COSTS["gpu"], HARD, 8, 200, bent=lambda confidence: confidence**0.2)
    assert planner.acceptance.trust("d") < 0.8
    made, _, slots = planned(
        COSTS["cpu"], (0.05,), 8, 200, bent=lambda confidence: np.full_like(confidence, 0.95)
    )
    assert np.mean(np.array(slots[80:]) == 0) > 0.8, "always sure and nearly always wrong"
    assert made > 0.9 * live(COSTS["cpu"], (0.05,), 8, 200, 0)


def test_a_drafter_s_trust_is_in_the_weight_that_the_verifier_compares_with() -> None:
    planner = planner_of(COSTS["gpu"])
    rng = np.random.default_rng(0)
    for _ in range(40):
        accepted, seconds = np.array([SLOTS, int(rng.integers(0, 2))]), (22e-3, 28e-3, 3e-3)
        sure = np.full((2, SLOTS), 0.9)
        learn(planner, sure, SLOTS, accepted, seconds, keys=["good", "bad"])
    plan = planner.next(PlannedLane([4, 6], ["good", "bad"], np.ones(2), CONTEXT))
    good, bad = plan.terms_of(4), plan.terms_of(6)
    assert good.kind is bad.kind is PlanKind.PRICE
    assert (good.price, good.slots, good.cap) == (bad.price, bad.slots, bad.cap)
    assert bad.weight < 0.7 * good.weight
    block = [0.9] * SLOTS
    assert prefixes([block], [bad])[0] < prefixes([block], [good])[0]


def test_two_cohorts_where_halves_hide_drafts_and_one_where_halves_cost_a_whole_pass() -> None:
    hidden = Costs(lambda t: 1e-3 + 0.2e-3 * t, lambda n, k: 0.3e-3 * n, 4e-3)
    flat = Costs(lambda t: 20e-3, lambda n, k: 2e-3, 1e-3)
    for costs, cohorts in ((hidden, 2), (flat, 1)):
        planner = planner_of(costs, explore=0.0)
        seconds = (costs.verify_s(320), costs.round_s(320, 64, SLOTS), costs.draft_s(64, SLOTS))
        learn(planner, np.full((64, SLOTS), 0.9), 4, 4, seconds)
        assert planner.next(lane(64)).cohorts == cohorts
        assert planner.next(lane(64, cohorts=1)).cohorts == 1


def test_two_cohorts_that_compute_on_the_same_processors_become_one_until_that_is_forgotten() -> (
    None
):
    costs = Costs(lambda t: 8e-3 + 1e-3 * t, lambda n, k: 1e-3 + 1e-3 * n, 2e-3)
    planner, sure = planner_of(costs, explore=0.0), np.full((8, SLOTS), 0.6)

    def run(cohorts: int, rounds: int) -> int:
        """Cohorts that are planned after rounds of so many."""
        size = 8 // cohorts
        apart_s = costs.round_s(2 * size, size, 1)
        seconds = (costs.verify_s(2 * size), cohorts * apart_s, costs.draft_s(size, 1))
        for _ in range(rounds):
            learn(planner, sure[:size, :1], 1, 1, seconds, together=8 * (cohorts - 1))
            planner.renew()
        return planner.next(lane(8)).cohorts

    assert run(1, 20) == 2, "by the curves, which were measured one after the other"
    assert run(2, 6) == 1
    assert run(1, 200) == 1
    assert run(1, 20_000) == 2
    assert run(2, 6) == 1


def test_a_plan_expects_a_draft_with_what_lies_between() -> None:
    costs = COSTS["gpu"]
    plan = planner_of(costs).next(lane(8, cohorts=1))
    assert plan.draft_s == pytest.approx(costs.draft_s(8, plan.terms.slots) + costs.hop_s)
