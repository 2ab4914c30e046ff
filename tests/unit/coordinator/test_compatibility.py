from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coordinator.lanes.facts import DrafterFacts, VerifierFacts
from coordinator.planning.cost import CostCurve
from coordinator.workers.descriptions import (
    drafter_mismatch,
    senseless,
    verifier_facts,
    verifier_mismatch,
)
from dspark.runtime.cost_store import Curve
from dspark.wire import codec
from dspark.wire.v1 import types_pb2, verify_pb2

BOTH: Any = {"incarnation": 1, "model": "toy", "vocab_size": 97, "context_length": 4096}
BOTH |= {"hidden_size": 8, "projection": "toy-projection", "cost": None}
VERIFIER = VerifierFacts(
    name="verify/0",
    endpoint="h:1",
    fingerprint="toy-target",
    page_size=16,
    pages_total=0,
    attention_path="toy",
    stop_token_ids=(),
    **BOTH,
)
DRAFTER = DrafterFacts(
    name="draft/0", endpoint="h:2", fingerprint="toy-drafter", block_size=3, **BOTH
)


def test_workers_of_one_make_fit() -> None:
    assert drafter_mismatch(VERIFIER, DRAFTER) is None
    assert verifier_mismatch(VERIFIER, replace(VERIFIER, name="verify/1", incarnation=5)) is None


WHOLE = "dspark:1,2:aa"


@pytest.mark.parametrize(
    ("needed", "change", "says"),
    [
        ("", {"vocab_size": 98}, "has a vocabulary of 98, the target on verify/0 one of 97"),
        ("", {"hidden_size": 9}, "takes feature rows of 9 values, verify/0 sends rows of 8"),
        ("another", {}, "needs the context projection toy-projection, not another"),
        (WHOLE, {"projection": "eagle3:1,2:aa"}, "is of the family eagle3, not dspark"),
        (WHOLE, {"projection": "dspark:1,3:aa"}, "reads the target's layers 1,3, not 1,2"),
        (WHOLE, {"projection": "dspark:1,2:bb"}, "needs the context projection bb, not aa"),
        (WHOLE, {"projection": "x"}, "needs the context projection x, not aa"),
    ],
)
def test_a_drafter_that_does_not_fit_is_told_what_differs(
    needed: str, change: dict[str, object], says: str
) -> None:
    verifier = replace(VERIFIER, projection=needed or VERIFIER.projection)
    told = str(drafter_mismatch(verifier, replace(DRAFTER, **change)))
    assert f"draft/0 {says}" in told


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (replace(VERIFIER, vocab_size=0), "verify/0 says vocab_size: 0, and at least 1 is wanted"),
        (
            replace(VERIFIER, context_length=1),
            "verify/0 says context_length: 1, and at least 2 is wanted",
        ),
        (
            replace(DRAFTER, block_size=65),
            "draft/0 says block_size: 65, and at most 64 is possible",
        ),
        (replace(DRAFTER, block_size=0), "draft/0 says block_size: 0, and at least 1 is wanted"),
        (replace(DRAFTER, vocab_size=0), "draft/0 says vocab_size: 0, and at least 1 is wanted"),
    ],
)
def test_what_no_worker_can_be_is_told(facts: VerifierFacts | DrafterFacts, says: str) -> None:
    assert senseless(facts) == says
    assert senseless(VERIFIER) is senseless(DRAFTER) is None


def test_a_verifier_that_projects_nothing_feeds_no_drafter() -> None:
    assert "projects no features" in str(
        drafter_mismatch(replace(VERIFIER, projection=""), DRAFTER)
    )


@pytest.mark.parametrize(
    "change", [{"vocab_size": 98}, {"fingerprint": "another", "model": "other"}]
)
def test_verifiers_of_different_targets_do_not_share_a_cell(change: dict[str, object]) -> None:
    other = replace(VERIFIER, name="verify/1", **change)
    assert str(verifier_mismatch(VERIFIER, other)).startswith("verify/1 ")


def _cost(said: verify_pb2.VerifierDescription) -> CostCurve | None:
    return verifier_facts("verify/0", "h:1", said).cost


def test_a_cost_curve_survives_and_a_broken_one_is_absent() -> None:
    seconds = np.array([[0.1, 0.2], [0.3, 0.4]])
    measured = Curve(np.array([1, 8]), np.array([64, 512]), seconds, "measured", (0.01, 0.02), 8)
    said = verify_pb2.VerifierDescription(cost=codec.write_cost(measured))
    curve = _cost(said)
    assert curve.grid() == ([1, 8], [64, 512], [0.1, 0.2, 0.3, 0.4])
    # eight tokens fill one sequence, and the second one has a cost of its own
    assert curve.measured(8, 64, sequences=2) == pytest.approx(0.3 + 0.01)
    said.cost.seconds[0] = float("nan")
    side = range(1, 401)
    endless = types_pb2.CostCurve(tokens=side, contexts=side, seconds=[0.1] * len(side) ** 2)
    for broken in (said.cost, None, endless):
        assert _cost(verify_pb2.VerifierDescription(cost=broken)) is None
