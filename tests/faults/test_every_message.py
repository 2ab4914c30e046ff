"""Row 15's story, every message between a verifier and its drafters hurt; the row hurts all."""

import pytest

from tests.faults.boundaries import kinds
from tests.faults.plan import Action, Plan, once, storm
from tests.faults.rows.r15_every_message import TOO_SMALL, hurt_by

SPOKEN = sorted(
    {kind for method, _, kind in kinds() if method.endswith(("/Rounds", "Features/Push"))}
    - {TOO_SMALL}
)
SLOW = (Action.DROP, Action.TWICE, Action.LATE, Action.SWAP)


@pytest.mark.parametrize(
    "action", [*(pytest.param(each, marks=pytest.mark.slow) for each in SLOW), Action.CUT]
)
def test_no_message_between_verifier_and_drafter_changes_an_answer(action: Action) -> None:
    for kind in SPOKEN:
        plan = Plan(once(kind, action, late_s=0.7))
        assert hurt_by(plan) == "", kind
        assert plan.hurt, f"{kind} is never said"


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))]
)
def test_storms_between_verifier_and_drafters_change_no_answer(seed: int) -> None:
    plan = Plan(storm(seed, 0.05, kinds=SPOKEN, late_s=0.3))
    assert hurt_by(plan) == ""
    assert plan.hurt
