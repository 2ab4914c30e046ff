"""The load generator sends to real services what the simulator asks of its own, and devices slow
down evenly."""

import itertools

from benchmarks.real_cell import FILES, questions
from coordinator.simulation.load import shape
from coordinator.simulation.scenario import Scenario
from dspark.synthetic.spec import load_spec


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
