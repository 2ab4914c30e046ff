"""The load generator sends to real services what the simulator asks of its own, and devices slow
down evenly."""

from __future__ import annotations

import itertools
from pathlib import Path

from benchmarks.real_cell import FILES, questions
from coordinator.simulation.load import shape
from coordinator.simulation.scenario import Scenario
from dspark.synthetic.spec import load_spec
from tests.simulator_fidelity import slower


def test_requests_are_the_same_number_for_number() -> None:
    scenario = Scenario(
        load_spec(FILES / "paper.yaml"),
        concurrency=1,
        prompt_tokens=(4, 9),
        answer_tokens=(5, 50),
        seed=3,
    )
    sent = list(itertools.islice(questions(scenario), 40))
    simulated = [shape(scenario, n) for n in range(40)]
    assert [(one.prompt, one.max_tokens) for one in sent] == simulated
    assert {one.prompt[0] for one in sent} == {0, 1, 2}
    assert len({len(one.prompt) for one in sent}) == 6
    assert all(5 <= (one.max_tokens or 0) <= 50 for one in sent)


def test_slower_devices_take_longer_by_one_factor(tmp_path: Path) -> None:
    file = FILES / "paper.yaml"
    plain, slow = load_spec(file), load_spec(slower(file, 4.0, tmp_path))
    for size in (1, 50, 3000):
        assert abs(slow.verify.seconds(size, 100) / plain.verify.seconds(size, 100) - 4.0) < 1e-9
        assert abs(slow.draft.seconds(size, 0) / plain.draft.seconds(size, 0) - 4.0) < 1e-9
    assert abs(slow.prefill_seconds(100, 100) / plain.prefill_seconds(100, 100) - 4.0) < 1e-9
