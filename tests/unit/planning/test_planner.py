"""Plans against what no plan can do: Algorithm 1 run on the live confidences of every round, see
`rounds_of`."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest

from coordinator.planning.acceptance import KEYS, AcceptanceEstimator
from coordinator.planning.cost import OUTLIER, USUAL, RunningRatio
from coordinator.planning.options import SENT, PlannedLane
from coordinator.planning.planner import Planner
from coordinator.planning.tries import IN_A_ROW, WAITED
from dspark.rounds.plan import PLAIN, Plan, PlanKind, Terms, prefixes
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
        ("gpu", MIXED, 1, (5, 7)),
        ("gpu", MIXED, 8, (5, 7)),
        ("gpu", MIXED, 64, (5, 7)),
        ("gpu", MIXED, 256, (5, 7)),
        ("small gpu", MIXED, 256, (0, 5, 7)),
        ("small gpu", HARD, 8, (0, 2, 4)),
        ("gpu", HARD, 1, (0, 2, 3, 4)),
        ("cpu", MIXED, 1, (0, 3, 5, 7)),
        ("cpu", MIXED, 8, (0, 2, 4)),
        ("cpu", HARD, 64, (0, 2)),
        ("simulated", MIXED, 1, (5, 7)),
        ("simulated", MIXED, 8, (5, 7)),
        ("simulated", MIXED, 64, (5, 7)),
        ("simulated", MIXED, 256, (5, 7)),
    ],
)
def test_plans_bring_nearly_what_algorithm_1_would_live(
    costs: str, kinds: tuple[float, ...], streams: int, lengths: tuple[int, ...]
) -> None:
    # of one stream the first blocks decide much
    rounds, seeds = (
        ROUNDS[streams],
        range(3 if streams == 1 else 1),
    )
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


@pytest.mark.parametrize(("accepted", "slots"), [((1, 0), 0), ((1, 1, 0), 1)])
def test_drafts_begin_where_they_bring_more_than_beginning_costs(
    accepted: tuple[int, ...], slots: int
) -> None:
    """A plain round 10 ms, one of a slot 14.6: 2.7 % better for half a token more, 14 % for two
    thirds."""
    costs = Costs(lambda t: 10e-3 + 5e-3 * max(t - 2, 0), lambda n, k: 2.6e-3, 2e-3)
    planner = planner_of(costs)

    def run(outcomes: tuple[int, ...], rounds: int) -> None:
        said = np.array([[sum(outcomes) / len(outcomes), *[0.0] * (SLOTS - 1)]])
        for number in range(rounds):
            accepted = outcomes[number % len(outcomes)]
            learn(planner, said, 1, accepted, (10e-3, 14.6e-3, 2.6e-3))
            planner.next(lane(1, cohorts=1))

    run((0,) * 19 + (1,), 200)
    assert planner.home == (0, 1)
    run(accepted, 800)
    assert planner.home[0] == slots


@pytest.mark.parametrize("switching", [1.0, 1.35])
def test_plain_rounds_are_tried_too_where_they_were_thought_too_dear(switching: float) -> None:
    dear = Costs(lambda t: 1.3 * CLOSE.verify_s(t), CLOSE.draft_s, CLOSE.hop_s)
    _, planner, slots = planned(CLOSE, HARD[:1], 1, 900, announced=dear, switching=switching)
    assert planner.cost.plain.value == pytest.approx(1 / 1.3, rel=0.05)
    assert np.mean(np.array(slots[600:]) == 0) > 0.7


def test_a_machine_that_became_slower_than_it_was_measured_is_planned_for_as_it_is() -> None:
    now, then = COSTS["gpu"], COSTS["gpu"]
    announced = Costs(
        lambda t: then.verify_s(t) / 2.0, lambda n, k: then.draft_s(n, k) / 3.0, then.hop_s
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


def test_two_cohorts_where_halves_hide_their_drafts_and_one_where_halves_cost_a_whole_pass() -> (
    None
):
    hidden = Costs(lambda t: 1e-3 + 0.2e-3 * t, lambda n, k: 0.3e-3 * n, 4e-3)
    flat = Costs(lambda t: 20e-3, lambda n, k: 2e-3, 1e-3)
    for costs, cohorts in ((hidden, 2), (flat, 1)):
        planner = planner_of(costs, explore=0.0)
        seconds = (costs.verify_s(320), costs.round_s(320, 64, SLOTS), costs.draft_s(64, SLOTS))
        learn(planner, np.full((64, SLOTS), 0.9), 4, 4, seconds)
        assert planner.next(lane(64)).cohorts == cohorts
        assert planner.next(lane(64, cohorts=1)).cohorts == 1


def test_what_two_cohorts_take_is_the_longest_of_what_must_follow_each_other() -> None:
    costs = Costs(lambda t: 10e-3, lambda n, k: 1e-3 * k, 3e-3)
    corrector = planner_of(costs).cost
    tokens = np.array([64.0])
    assert corrector.round_s(tokens, CONTEXT, 32, 32, 4, 1)[0] == pytest.approx(17e-3)
    # both passes
    assert corrector.round_s(tokens, CONTEXT, 32, 32, 4, 2)[0] == pytest.approx(20e-3)
    # one of them by itself
    assert corrector.round_s(tokens, CONTEXT, 32, 32, 9, 2)[0] == pytest.approx(22e-3)
    # both drafts
    assert corrector.round_s(tokens, CONTEXT, 32, 32, 20, 2)[0] == pytest.approx(40e-3)


def test_a_verifier_that_becomes_slower_is_so_in_rounds_of_both_kinds() -> None:
    """Else drafts begin whenever it is slower for a moment: their rounds look as fast as then."""
    cost = planner_of(COSTS["gpu"]).cost
    for _ in range(20 * USUAL):
        cost.verified(1.0, drafted=False)
    for _ in range(20 * USUAL):
        cost.verified(1.5, drafted=True)
    assert cost.plain.value == pytest.approx(1.0, rel=0.2), "drafted rounds take longer by nature"
    ratio = cost.drafted.value / cost.plain.value
    for _ in range(20 * USUAL):
        cost.verified(2.0, drafted=True)
    assert cost.drafted.value == pytest.approx(2.0, rel=0.01)
    assert cost.drafted.value / cost.plain.value == pytest.approx(ratio)


def test_what_is_tried_says_what_it_takes_beside_the_usual() -> None:
    cost = planner_of(COSTS["gpu"]).cost
    for number in range(200 * USUAL):
        speed = 1.0 + 0.3 * (number > 100 * USUAL)
        for _ in range(IN_A_ROW if number % USUAL == 0 else 0):
            cost.verified(1.2 * speed, drafted=True)
        cost.verified(speed, drafted=False)
    assert cost.plain.value == pytest.approx(1.3, rel=0.05)
    assert cost.drafted.value / cost.plain.value == pytest.approx(1.2, rel=0.05)


def of_drafts(plan: Plan) -> Terms:
    """The terms of those that draft; of no slots without one."""
    return next((each.terms for each in plan.sequences.values() if each.terms), plan.terms)


def passed(planner: Planner, costs: Costs, sequences: int, slots: int) -> None:
    """A pass of poor blocks, of which nothing was verified."""
    took, drafted_s = costs.verify_s(sequences), costs.draft_s(sequences, slots)
    between_s = drafted_s + costs.hop_s if slots else 0.0
    seconds = (took, took + between_s, drafted_s * bool(slots))
    learn(planner, np.full((sequences, slots), 0.2), 0, 0, seconds, drafted=bool(slots))


def tried(costs: Costs, plans: int, cohorts: int = 1) -> list[Plan]:
    """Of a lane whose drafts are poor."""
    planner, made, slots = planner_of(costs), list[Plan](), SLOTS
    for _ in range(plans):
        passed(planner, costs, 64, slots)
        made.append(planner.next(lane(64, cohorts)))
        slots = of_drafts(made[-1]).slots
    return made


def test_plans_try_something_now_and_then_by_a_key_and_rarely_where_it_is_dear() -> None:
    dear = [of_drafts(plan).slots for plan in tried(COSTS["cpu"], 9000)]
    assert dear[:400] == [of_drafts(plan).slots for plan in tried(COSTS["cpu"], 400)], (
        "the same keys, the same plans"
    )
    assert 0 < np.count_nonzero(dear) < 900
    assert dear.count(SLOTS) > 0, "whole blocks, too"


@pytest.mark.parametrize(
    ("keys", "few"),
    [
        (["d"] * 3, [0, 1]),
        (["d"] * 16, [0, 1, 2, 3]),
        (["a", "a", "a", "b", "b", "b", "c"], [0, 1, 3, 4, 6]),
    ],
)
def test_out_of_plain_rounds_a_try_drafts_for_some_of_each_kind_and_one_in_four(
    keys: list[str], few: list[int]
) -> None:
    """Each of them has to be sent its context first."""
    _, planner, _ = planned(COSTS["cpu"], HARD, 8, 300)
    assert planner.home == (0, 1)
    one = dataclasses.replace(lane(len(keys), cohorts=1), keys=keys)
    plans = [planner.next(one) for _ in range(2000)]
    tries = {tuple(plan.sequences) for plan in plans if plan.sequences}
    assert tries == {tuple(few)}
    assert {plan.terms for plan in plans} == {PLAIN}


def test_a_try_that_drafts_for_few_of_many_is_as_rare_as_it_is_dear() -> None:
    """Those that do not draft wait as well."""
    costs = Costs(lambda tokens: 20e-3 + 0.2e-3 * tokens, lambda count, slots: 12e-3, 2e-3)
    _, planner, _ = planned(costs, (0.5, 0.4), 8, 300)
    assert planner.home == (0, 1)
    alike, apart = lane(8, cohorts=1), dataclasses.replace(lane(8, cohorts=1), keys=[*"aabbccdd"])
    counts = list[int]()
    for each in (alike, apart):
        drafts = [of_drafts(planner.next(each)).slots > 0 for _ in range(20000)]
        counts.append(sum(now and not before for before, now in itertools.pairwise(drafts)))
    assert 0 < counts[0] < 0.5 * counts[1]


def test_a_try_that_drafts_for_few_is_charged_for_sending_their_contexts() -> None:
    costs = COSTS["cpu"]
    _, planner, _ = planned(costs, HARD, 8, 300)
    whole, options = lane(8, cohorts=1), planner._options
    option = max(options.of(whole)[1], key=lambda each: each.rate)
    rate, seconds = options.for_few(whole, 2, option)
    alone, _ = options.walked(whole.part(2), option)
    assert seconds == pytest.approx((1.0 + SENT) * alone.seconds[alone.chosen])
    assert rate * seconds == pytest.approx(alone.rates[alone.chosen] * alone.seconds[alone.chosen])


@pytest.mark.parametrize(("comes_after", "lasts"), [(0, IN_A_ROW), (5, 6), (99, WAITED)])
def test_a_try_lasts_until_its_rows_came_and_no_longer_than_they_are_waited_for(
    comes_after: int, lasts: int
) -> None:
    """Rounds stay plain until a drafter has the rows, which may be never."""
    costs = COSTS["cpu"]
    _, planner, _ = planned(costs, HARD, 8, 300)
    runs, run = list[int](), 0
    for _ in range(6000):
        slots = of_drafts(planner.next(lane(8, cohorts=1))).slots
        if run and not slots:
            runs.append(run)
        run = run + 1 if slots else 0
        passed(planner, costs, 8, slots if run > comes_after else 0)
    assert len(runs) > 3
    assert {run % lasts for run in runs} == {0}, "of one behind another, too"


def test_what_is_tried_for_one_plan_keeps_the_cohorts_in_force() -> None:
    plans = tried(COSTS["cpu"], 3000, cohorts=2)
    assert sum(of_drafts(plan).slots == 0 for plan in plans) > 2500
    assert {plan.cohorts for plan in plans if of_drafts(plan).slots} == {1}, (
        "two would find no round to hide a draft in"
    )


def test_a_plan_expects_a_draft_with_what_lies_between() -> None:
    assert planner_of(COSTS["gpu"]).next(lane(8)).draft_s > COSTS["gpu"].hop_s


def test_empty_blocks_in_a_drafted_round_say_nothing() -> None:
    planner = planner_of(COSTS["gpu"], explore=0.0)
    rounds = np.full((4, SLOTS), np.nan)
    rounds[0] = 0.9
    draft_s = COSTS["gpu"].draft_s(1, SLOTS)
    for _ in range(40):
        learn(planner, rounds, 0, 0, (20.4e-3, 25e-3, draft_s))
    assert planner.acceptance.usual() == pytest.approx(np.full(SLOTS, 0.9), abs=0.01)
    assert planner.cost.drafting.value == pytest.approx(1.0)
    assert planner.next(lane(4, cohorts=1)).terms.price == pytest.approx(0.9**SLOTS, rel=0.05), (
        "of what was drafted"
    )


# One acceptance estimator.


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("price", [0.0, 0.5, 0.9])
def test_verifying_the_promising_slots_alone_does_not_bend_the_estimate(
    price: float, labels: bool
) -> None:
    rng = np.random.default_rng(1)
    estimator = AcceptanceEstimator(SLOTS)
    for _ in range(200):
        sure = rng.beta(0.7, 0.3, (16, SLOTS))
        alive = np.cumprod(sure, axis=1)
        verified = (alive >= price).sum(axis=1)
        accepted = np.minimum(
            np.cumprod(rng.random(sure.shape) < sure, axis=1).sum(axis=1), verified
        )
        known = None
        if labels:
            before = np.concatenate((np.ones((16, 1)), alive[:, :-1]), axis=1)
            known = np.stack((before, alive), axis=2)
        estimator.observe(["d"] * 16, sure, verified, accepted, known)
    assert estimator.trust("d") == pytest.approx(1.0, abs=0.03)
    assert estimator.ratios("d")[:3] == pytest.approx(np.ones(3), abs=0.06)


def test_what_a_slot_keeps_of_its_promise_is_found_slot_by_slot() -> None:
    rng = np.random.default_rng(2)
    estimator = AcceptanceEstimator(3)
    truth = np.array([1.0, 0.8, 0.5])
    for _ in range(400):
        sure = rng.uniform(0.5, 1.0, (16, 3))
        kept = rng.random(sure.shape) < sure * truth
        accepted = np.cumprod(kept, axis=1).sum(axis=1)
        estimator.observe(["d"] * 16, sure, np.full(16, 3), accepted)
    assert estimator.ratios("d") == pytest.approx(truth, abs=0.08)
    assert estimator.ratios("of nobody")[0] == pytest.approx(estimator.trust("of nobody")), (
        "what the lane is like"
    )
    assert estimator.usual() == pytest.approx(np.full(3, 0.75), abs=0.03)


def test_one_key_does_not_spoil_another_and_bad_numbers_spoil_nothing() -> None:
    estimator = AcceptanceEstimator(2)
    for _ in range(100):
        estimator.observe(["a", "b"], np.full((2, 2), 0.9), np.full(2, 2), np.array([2, 0]))
    assert estimator.trust("a") > 1.0 > 0.3 > estimator.trust("b")
    estimator.observe(["c"], np.array([[np.nan, 7.0]]), np.array([2]), np.array([0]))
    assert np.isfinite(estimator.ratios("c")).all()


def test_new_keys_are_learned_of_however_many_there_were_before() -> None:
    estimator = AcceptanceEstimator(2)

    def observe(key: str, accepted: int) -> None:
        sure = np.full((1, 2), 0.9)
        estimator.observe([key], sure, np.array([2]), np.array([accepted]))

    for number in range(KEYS):
        observe(f"old {number}", 2)
    observe("old 0", 2)
    for _ in range(500):
        observe("new", 0)
    assert estimator.trust("new") < 0.2
    assert len(estimator._sums) == KEYS
    assert "old 0" in estimator._sums, "it was seen again"
    assert "old 1" not in estimator._sums


# One cost corrector.


def test_a_running_ratio_is_slow_and_no_single_value_pulls_it_away() -> None:
    ratio = RunningRatio(1.0)
    for _ in range(50):
        ratio.add(1.0)
    ratio.add(1e6)
    assert 1.0 < ratio.value <= 1.0 + 0.05 * OUTLIER
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        ratio.add(bad)
    assert ratio.seen == 51


def test_passes_with_prompts_say_nothing_of_rounds() -> None:
    planner = planner_of(COSTS["gpu"])
    nothing = np.zeros((4, 0))
    for _ in range(2):
        learn(planner, nothing, 0, 0, (1.0, 1.0, 0.0), prompts=256)
    assert planner.cost.plain.seen == 0
    learn(planner, nothing, 0, 0, (0.02, 0.03, 0.0))
    assert planner.cost.plain.seen == 1
