"""What judged rounds teach: those that end an answer and those cut for lack of pages count for what they were."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coordinator.answers.answer import Answer
from coordinator.answers.commit_log import CommitLog
from coordinator.lanes.learning import REFIT_EVERY, Learning
from coordinator.lanes.ports import Declined, Judged
from coordinator.lanes.refit import ENOUGH, Refit, key_of
from coordinator.lanes.rounds import Blocks, Turn
from coordinator.scheduling.budget import Budget
from coordinator.scheduling.cost_curve import CostCurve
from coordinator.scheduling.evidence import Evidence
from coordinator.scheduling.planning import Cohort, Plan
from coordinator.scheduling.step_cost import StepCost
from dspark.rounds.policy import Columns, Fixed
from dspark.types import Block, Cursor, Law, RefusalReason, Rule, Verdict

SLOTS, COHORT, ANSWER = 5, 256, 6
LAW = Law(rule=Rule.BLOCK)


@pytest.fixture
def learning() -> Learning:
    return Learning(StepCost(None), Evidence(SLOTS), Budget())


def cohort_of(turns: list[Turn]) -> tuple[Cohort, Plan]:
    n = len(turns)
    yes, no = np.ones(n, np.bool_), np.zeros(n, np.bool_)
    numbers, rows = np.arange(n, dtype=np.uint64), np.arange(n)
    columns = Columns.of([Fixed(SLOTS)] * n)
    return Cohort(numbers, numbers, rows, np.ones(n), columns, yes, yes, 32.0), Plan(SLOTS, yes, yes, no)


def learn(learning: Learning, turns: list[Turn], verdicts: list[Any], tokens: int = 0, ridden: int = 0) -> None:
    cohort, plan = cohort_of(turns)
    learning.learn(
        turns,
        cohort,
        Blocks.of(turns),
        Judged(tuple(verdicts), 0.01, tokens, ridden),
        plan,
        price=0.3,
        speculative=True,
        calm=False,
        rest_s=None,
    )


@pytest.mark.parametrize(
    ("speculative", "calm", "counted"), [(True, False, "speculative"), (False, True, "plain"), (False, False, None)]
)
def test_a_plain_round_among_drafted_ones_says_nothing_of_plain_stretches(
    speculative: bool, calm: bool, counted: str | None
) -> None:
    costs = StepCost(None)
    learning, turns = Learning(costs, Evidence(SLOTS), Budget()), [turn([], 0)]
    cohort, plan = cohort_of(turns)
    judged = Judged((Verdict(turns[0].cursor, 0, 7, 0, 0),), 0.01, 1)
    learning.learn(
        turns, cohort, Blocks.of(turns), judged, plan, price=0.3, speculative=speculative, calm=calm, rest_s=0.002
    )
    for name in ("speculative", "plain"):
        assert getattr(costs, name).rest.seconds == (0.002 if name == counted else 0.0)


def test_a_prompt_that_rode_along_is_told_apart_from_the_cohorts_tokens() -> None:
    costs = StepCost(CostCurve([1, 101], [32], [0.010, 0.020]))
    learning, turns = Learning(costs, Evidence(SLOTS), Budget()), [turn([], 0)]
    cohort, plan = cohort_of(turns)
    for count in range(300):
        ridden = 64 * (count % 2)
        judged = Judged((Verdict(turns[0].cursor, 0, 7, 0, 0),), 0.01, 1 + ridden, ridden)  # for nothing
        learning.learn(
            turns, cohort, Blocks.of(turns), judged, plan, price=0.3, speculative=False, calm=True, rest_s=0.002
        )
    assert learning.extra_tokens == 64
    assert costs.of_plain_round(65.0, 32, 1, 64) == pytest.approx(0.010, rel=0.05)
    assert costs.of_plain_round(65.0, 32, 1) > 0.014  # as many of its own


def turn(confidence: list[float], prefix: int, row: int = 0, answer: Any = None, number: int = 1) -> Turn:
    track: Any = SimpleNamespace(request=SimpleNamespace(law=LAW), row=row, answer=answer)
    cursor = Cursor(number, 0, 1, 9)
    block = Block(cursor, (1,) * len(confidence), tuple(confidence))
    return Turn(track, cursor, block, "d", prefix=prefix)


def rounds_of_short_answers(evidence: Evidence, seed: int = 0) -> Iterator[tuple[list[Turn], list[Verdict]]]:
    """Rounds of a cohort whose drafter says the truth; whoever has said all it may gives its place to a new answer."""
    rng = np.random.default_rng(seed)
    answers = [Answer(CommitLog((1,)), max_tokens=ANSWER) for _ in range(COHORT)]
    rows = [evidence.take() for _ in range(COHORT)]
    while True:
        told = 1.0 / (1.0 + np.exp(-rng.normal(1.5, 1.5, (COHORT, SLOTS))))
        whole = np.cumprod(rng.random((COHORT, SLOTS)) < told, axis=1).sum(axis=1).tolist()
        turns, verdicts = [], []
        for place in range(COHORT):
            prefix = min(SLOTS, answers[place].room - 1)
            its = turn(told[place].tolist(), prefix, rows[place], answers[place])
            accepted = min(whole[place], prefix)
            turns.append(its)
            verdicts.append(Verdict(its.cursor, accepted, 2, 0, prefix))
            if answers[place].take((1,) * (accepted + 1)).end is not None:
                answers[place] = Answer(CommitLog((1,)), max_tokens=ANSWER)
                its.track.row = -1  # as a lane leaves it before the round is learnt from
        yield turns, verdicts


def test_rounds_that_end_their_answer_teach_as_much_as_others(learning: Learning) -> None:
    """Most end because everything was accepted: without them what is left looks as if confidence were too high."""
    evidence, learning.refit = learning._evidence, Refit(every=1)
    for number, (turns, verdicts) in enumerate(rounds_of_short_answers(evidence)):
        learn(learning, turns, verdicts)
        if number >= 3 * ENOUGH // COHORT:
            break
    fitted = learning.refit.temperatures(key_of(turns[0]))
    assert fitted is not None
    assert fitted == pytest.approx(1.0, rel=0.15)
    assert evidence.rounds < (number + 1) * COHORT, "sequences that are gone have no evidence any more"


def test_slots_nobody_verified_are_no_rejections(learning: Learning) -> None:
    """The verifier had pages for two slots of five, and took both."""
    evidence = learning._evidence
    row = evidence.take()
    for _ in range(REFIT_EVERY):
        its = turn([0.9] * SLOTS, SLOTS, row)
        learn(learning, [its], [Verdict(its.cursor, 2, 3, 0, 2)], tokens=3)
    outcomes = learning.refit._outcomes[key_of(its)]
    assert outcomes.seen.sum(axis=1).tolist() == outcomes.accepted.sum(axis=1).tolist() == [1, 1, 0, 0, 0]
    assert evidence.trust(np.array([row]))[0] > 1.0, "both were accepted, which is more than was promised"


def test_what_ran_besides_a_cohort_is_what_its_verifier_says(learning: Learning) -> None:
    """A row whose verdict does not fit was in the step all the same: its tokens are no prompt's."""
    turns = [turn([0.9] * SLOTS, SLOTS, learning._evidence.take(), number=number) for number in (1, 2)]
    verdicts = [Verdict(turns[0].cursor, 2, 3, 0, 2), Verdict(turns[0].cursor, 1, 3, 0, 2)]
    learn(learning, turns, verdicts, tokens=6 + 7, ridden=7)
    assert learning.extra_tokens == 7.0


@pytest.mark.parametrize(
    "outcome",
    [
        Declined(Cursor(1, 0, 1, 9), RefusalReason.INTERNAL),
        Verdict(Cursor(1, 0, 7, 9), 1, 3, 0, 5),
        Verdict(Cursor(1, 0, 1, 9), 3, 3, 0, 2),
        Verdict(Cursor(1, 0, 1, 9), 1, 3, 0, 6),
    ],
)
def test_what_fits_no_question_teaches_nothing(learning: Learning, outcome: Any) -> None:
    row = learning._evidence.take()
    for _ in range(REFIT_EVERY):
        learn(learning, [turn([0.9] * SLOTS, SLOTS, row)], [outcome])
    assert learning._evidence.rounds == 0
    assert not learning.refit._outcomes
