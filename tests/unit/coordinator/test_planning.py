"""Who is drafted for and how long blocks are, against costs and evidence made up here."""

import numpy as np

from coordinator.scheduling.choice import DraftSeconds
from coordinator.scheduling.cost_curve import CostCurve
from coordinator.scheduling.evidence import Evidence
from coordinator.scheduling.planning import FIRST_PROBE, LOOK_EVERY, Cohort, Plan, Planner
from coordinator.scheduling.step_cost import StepCost
from dspark.rounds.policy import Columns, Fixed, Greedy, Off, Policy

SLOTS = 4
TOKENS = [1, 2, 4, 8, 16, 32, 64, 128]


class World:
    """Sequences of given survival, a cost per verified token and per drafted slot."""

    def __init__(
        self, survivals: list[list[float]], *, token_s: float, slot_s: float, policies: list[Policy] | None = None
    ) -> None:
        self.evidence = Evidence()
        self.evidence.widen(SLOTS)
        self.cost = StepCost(CostCurve(TOKENS, [64], [0.010 + token_s * count for count in TOKENS]))
        self.planner = Planner(self.cost, self.evidence, explore=1 / 64, bypass=True)
        self.draft_seconds: DraftSeconds = lambda share, slots: slot_s * slots if share > 0 else 0.0
        self.survivals = np.array(survivals)
        self.rows = np.array([self.evidence.take() for _ in survivals])
        self.policies = Columns.of(policies or [Greedy()] * len(survivals))
        self.round = 0

    def plan(self) -> Plan:
        self.round += 1
        count = len(self.rows)
        cohort = Cohort(
            sequence=np.arange(count, dtype=np.uint64),
            round=np.full(count, self.round, np.uint64),
            row=self.rows,
            weight=np.ones(count),
            policies=self.policies,
            able=self.policies.kind > 0,
            fed=np.ones(count, np.bool_),
            context=64.0,
        )
        return self.planner.plan(cohort, self.draft_seconds)

    def judge(self, plan: Plan) -> None:
        at = plan.able & plan.drafted
        alive = self.survivals[at][:, : plan.slots]
        if len(alive):
            lengths = np.full(len(alive), alive.shape[1])
            accepted = np.rint(alive.sum(axis=1)).astype(np.int64)
            self.evidence.observe(self.rows[at], alive, lengths, lengths, accepted, least_weight=plan.least_weight)

    def run(self, rounds: int) -> list[Plan]:
        plans = []
        for _ in range(rounds):
            plans.append(self.plan())
            self.judge(plans[-1])
        return plans


def test_slots_that_bring_less_than_they_cost_are_not_drafted() -> None:
    plans = World([[0.9, 0.8, 0.02, 0.01]], token_s=0.0005, slot_s=0.0010).run(300)
    assert np.median([plan.slots for plan in plans[100:]]) == 2


def test_whole_blocks_are_drafted_now_and_then_all_the_same() -> None:
    plans = World([[0.9, 0.8, 0.02, 0.01]], token_s=0.0005, slot_s=0.0010).run(600)
    assert 0 < sum(plan.slots == SLOTS for plan in plans[200:]) < 60


def test_slots_that_cost_next_to_nothing_are_all_drafted() -> None:
    plans = World([[0.9, 0.8, 0.7, 0.6]], token_s=0.0001, slot_s=0.0001).run(100)
    assert all(plan.slots == SLOTS and plan.drafted.all() for plan in plans)


def test_where_nothing_is_accepted_plain_decoding_takes_over_and_probes_become_rare() -> None:
    plans = World([[0.05, 0.0, 0.0, 0.0]], token_s=0.001, slot_s=0.001).run(1200)
    drafted = [bool(plan.drafted.any()) for plan in plans]
    assert sum(drafted[200:]) < 0.02 * 1000
    assert any(drafted[200:])
    assert all(not plan.resting.any() for plan, asked in zip(plans, drafted, strict=True) if asked)
    assert sum(bool(plan.resting.any()) for plan in plans[200:]) > 900


def test_easier_text_is_noticed_by_a_probe() -> None:
    world = World([[0.05, 0.0, 0.0, 0.0]], token_s=0.0005, slot_s=0.0005)
    world.run(300)
    assert world.planner.plain
    world.survivals[:] = [0.95, 0.95, 0.9, 0.9]
    plans = world.run(600)
    assert not world.planner.plain
    assert plans[-1].drafted.all()


def test_a_hard_sequence_beside_easy_ones_goes_plain_alone() -> None:
    world = World([[0.95, 0.9, 0.85, 0.8]] * 7 + [[0.01, 0.0, 0.0, 0.0]], token_s=0.0008, slot_s=0.0002)
    plans = world.run(300)[100:]
    easy = np.mean([plan.drafted[:7].mean() for plan in plans])
    hard = np.mean([plan.drafted[7] for plan in plans])
    assert easy > 0.95
    assert hard < 0.1


def test_policies_that_name_a_length_are_drafted_for_whatever_they_bring() -> None:
    policies: list[Policy] = [Greedy(), Fixed(2), Off()]
    world = World([[0.01, 0.0, 0.0, 0.0]] * 3, token_s=0.001, slot_s=0.001, policies=policies)
    plans = world.run(300)[100:]
    assert all(plan.drafted[1] for plan in plans)
    assert not any(plan.drafted[2] for plan in plans)
    assert sum(plan.drafted[0] for plan in plans) < 20


def test_in_a_lane_without_drafts_only_those_who_name_a_length_are_drafted_for() -> None:
    world = World([[0.9] * SLOTS] * 2, token_s=0.0001, slot_s=0.0001, policies=[Greedy(), Fixed(2)])
    assert world.run(20)[-1].drafted.all()
    world.planner = Planner(world.cost, world.evidence, explore=1 / 64, bypass=True, silent=lambda: True)
    (plan,) = world.run(1)
    assert plan.drafted.tolist() == [False, True]
    assert plan.resting.tolist() == [True, False]


def test_a_lane_whose_drafts_come_back_looks_at_once_whether_they_pay_by_now() -> None:
    silent = [False]
    world = World([[0.05, 0.0, 0.0, 0.0]] * 2, token_s=0.0005, slot_s=0.0005)
    world.planner = Planner(world.cost, world.evidence, explore=1 / 64, bypass=True, silent=lambda: silent[0])
    world.run(300)
    silent[0] = True
    assert not any(plan.drafted.any() or plan.probe for plan in world.run(100))
    silent[0] = False
    world.survivals[:] = [0.95, 0.95, 0.9, 0.9]
    first, *rest = world.run(60)
    assert first.probe
    assert first.drafted.all()
    assert all(plan.drafted.all() for plan in rest[-30:])


def test_leaving_drafts_out_is_worth_a_trial_only_where_they_hardly_pay() -> None:
    rich, poor = ([0.9, 0.8, 0.7, 0.6], 0.0001), ([0.1, 0.01, 0.0, 0.0], 0.001)
    for (survival, slot_s), worth in ((rich, False), (poor, True)):
        world = World([survival] * 4, token_s=0.001, slot_s=slot_s)
        world.run(100)
        assert world.planner.plain_could_win() is worth


def test_without_a_curve_everybody_is_drafted_for_in_full() -> None:
    world = World([[0.01, 0.0, 0.0, 0.0]], token_s=0.001, slot_s=0.001)
    world.planner = Planner(StepCost(None), world.evidence, explore=1 / 64, bypass=True)
    assert all(plan.slots == SLOTS and plan.drafted.all() for plan in world.run(50))


def test_drafts_that_pay_only_behind_another_step_are_told_from_those_that_never_do() -> None:
    good, poor = [0.9, 0.8, 0.7, 0.6], [0.05, 0.0, 0.0, 0.0]
    slow = World([good] * 8, token_s=0.002, slot_s=0.010)
    never = World([poor] * 8, token_s=0.002, slot_s=0.010)
    for world in (slow, never):
        world.run(100)
        assert world.planner.plain, "a round that waits for its draft loses"
    assert slow.planner.overlap_pays()
    assert not never.planner.overlap_pays()


def test_a_lone_sequence_has_nothing_to_overlap() -> None:
    world = World([[0.9, 0.8, 0.7, 0.6]], token_s=0.0005, slot_s=0.03)
    world.run(100)
    assert world.planner.plain
    assert not world.planner.overlap_pays()


def test_rows_that_pay_only_where_a_step_hides_their_drafts_are_found() -> None:
    """No row is worth the wait for its draft; behind another step the good ones are worth their tokens."""
    good, poor = [0.9, 0.8, 0.7, 0.6], [0.05, 0.0, 0.0, 0.0]
    world = World([good] * 12 + [poor] * 4, token_s=0.0005, slot_s=0.0)
    world.draft_seconds = lambda share, slots: 0.012 + 0.03 * share if share > 0 else 0.0
    world.run(200)
    assert world.planner.plain
    assert world.planner.overlap_pays()


def test_a_row_that_nearly_pays_at_last_is_no_reason_to_probe_again_at_once() -> None:
    world = World([[0.05, 0.0, 0.0, 0.0]] * 4, token_s=0.001, slot_s=0.001)
    probes: list[int] = []
    for count in range(1500):
        plan = world.plan()
        if plan.drafted.any():
            probes.append(count)
        world.survivals[:, :2] = (0.5, 0.1) if len(probes) % 2 else (0.0, 0.0)
        world.judge(plan)
    assert world.planner.plain
    assert min(np.diff([at for at in probes if at > 100])) > FIRST_PROBE


def test_a_lane_that_keeps_changing_its_mind_probes_no_oftener_than_one_that_waited() -> None:
    world = World([[0.05, 0.0, 0.0, 0.0]], token_s=0.0005, slot_s=0.0005)
    world.run(400)
    before = _gap_after_return(world)
    assert before > 2 * FIRST_PROBE, "the interval it had come to, halved, not the first one"


def _gap_after_return(world: World) -> int:
    """Plain rounds before the first probe, once text was easy for a while and is hard again."""
    world.survivals[:] = [0.95, 0.95, 0.9, 0.9]
    while world.planner.plain:
        world.judge(world.plan())
    world.survivals[:] = [0.0, 0.0, 0.0, 0.0]
    while not world.planner.plain:
        world.judge(world.plan())
    gap = 0
    while not world.plan().drafted.any():
        gap += 1
    return gap


def test_newcomers_are_looked_at_in_a_plain_lane_once_they_are_many() -> None:
    world = World([[0.05, 0.0, 0.0, 0.0]] * 8, token_s=0.001, slot_s=0.001)
    world.run(300)
    assert world.planner.plain
    for place in range(3):  # a quarter and more of the cohort ended; others came in their place
        world.evidence.free(int(world.rows[place]))
        world.rows[place] = world.evidence.take()
    plan = world.plan()
    assert plan.probe
    assert plan.drafted.tolist() == [True] * 3 + [False] * 5
    world.judge(plan)
    assert not world.plan().drafted[:3].all(), "they were seen"


def test_a_plain_lane_weighs_drafts_anew_now_and_then_and_whenever_it_has_learned() -> None:
    world = World([[0.05, 0.0, 0.0, 0.0]] * 4, token_s=0.001, slot_s=0.001)
    world.run(300)
    asked: list[int] = []
    slow = world.draft_seconds
    world.draft_seconds = lambda share, slots: (asked.append(world.round), slow(share, slots))[1]
    drafted = []
    for _ in range(600):
        plan = world.plan()
        world.judge(plan)
        if plan.drafted.any():
            drafted.append(world.round)
    weighed = sorted(set(asked))
    assert max(np.diff(weighed)) <= LOOK_EVERY
    assert len(weighed) < 600 / LOOK_EVERY + 2 * len(drafted) + 2
    assert all(at + 1 in weighed for at in drafted[:-1])


class ColdWorld(World):
    """One sequence, every slot of which is kept with the same chance; steps among drafted ones take `cold` times what
    calm ones take, and all are noisy."""

    def __init__(self, kept: float, *, cold: float, noise: float) -> None:
        super().__init__([[kept**slot for slot in range(1, SLOTS + 1)]], token_s=0.0005, slot_s=0.0007)
        self._rng, self._cold, self._noise = np.random.default_rng(3), cold, noise
        self._asked = True

    def drafted_share(self, rounds: int) -> float:
        drafted = 0
        for _ in range(rounds):
            plan = self.plan()
            asked = bool((plan.able & plan.drafted).any())
            slots, alive = plan.slots if asked else 0, self.survivals[:, : plan.slots]
            if asked:
                lost = np.flatnonzero(self._rng.random(slots) >= self.survivals[0, 0])
                kept, lengths = np.array([lost[0] if len(lost) else slots]), np.array([slots])
                self.evidence.observe(self.rows, alive, lengths, lengths, kept, least_weight=plan.least_weight)
            calm = not (asked or self._asked)
            seconds = self.cost.verify.measured(1.0 + slots, 64.0, 1) if self.cost.verify else 0.0
            seconds *= np.exp(self._rng.normal(0.0, self._noise) - self._noise**2 / 2.0) * (1.0 if calm else self._cold)
            self.cost.observe(1.0 + slots, 64.0, seconds, 1, calm=calm)
            self._asked, drafted = asked, drafted + asked
        return drafted / rounds


def test_a_new_lane_whose_drafts_only_seem_to_pay_goes_plain() -> None:
    """Between drafts a plain round would take 1.7 times what it takes without them, so that drafts look better."""
    world = ColdWorld(0.5, cold=1.7, noise=0.05)
    assert world.drafted_share(300) < 0.3
    assert world.drafted_share(1000) < 0.05


def test_drafts_that_pay_in_spite_of_cold_steps_stay() -> None:
    assert ColdWorld(0.85, cold=1.7, noise=0.2).drafted_share(1500) > 0.9


def test_noise_of_a_long_plain_stretch_does_not_keep_a_lane_from_drafts_that_pay() -> None:
    world = ColdWorld(0.05, cold=1.0, noise=0.2)
    assert world.drafted_share(3000) < 0.05
    world.survivals[:] = 0.5 ** np.arange(1, SLOTS + 1)
    world.drafted_share(1500)
    assert world.drafted_share(500) > 0.9
