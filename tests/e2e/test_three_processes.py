"""Three processes started by hand: the answers of the system are those of the target alone."""

import sys
from pathlib import Path

import pytest

from deploy.processes import ProcessCell
from dspark.client import Completion
from dspark.errors import Unavailable
from dspark.runtime.process import SPINS
from tests.commands import dspark
from tests.faults.oracle import plain_greedy
from tests.faults.pair import FLAT

PROMPTS = [[5, 9, 17, 33], [2], list(range(2, 90)), [100, 3, 100, 3, 100, 3, 64]]
POLICIES = ("off", "adaptive", "fixed:1", "fixed:7", "threshold:0.5")
TOKENS = 48


@pytest.fixture(scope="module")
def plain(golden_target: Path) -> list[list[int]]:
    return plain_greedy(golden_target, PROMPTS, TOKENS)


@pytest.mark.skipif(sys.platform != "linux", reason="torch has another OpenMP there")
@pytest.mark.parametrize("name", ["verify/0", "draft/0"])
def test_who_waits_for_a_product_spins_briefly(cell: ProcessCell, name: str) -> None:
    assert f"GOMP_SPINCOUNT = '{SPINS}'" in cell.children[name].log.read_text()


def test_greedy_answers_under_every_policy_at_the_same_time_equal_the_target_alone(
    cell: ProcessCell, plain: list[list[int]]
) -> None:
    asked = [(policy, number) for policy in POLICIES for number in range(len(PROMPTS))]
    options = {"max_tokens": TOKENS, "temperature": 0.0, "ignore_eos": True}
    with cell.client() as client:
        streams = [
            client.generate(PROMPTS[number], policy=policy, **options) for policy, number in asked
        ]
        for (policy, number), stream in zip(asked, streams, strict=True):
            answer = Completion.of(list(stream))
            assert list(answer.token_ids) == plain[number]
            assert answer.end.speculation.policy == policy


def test_generate_prints_ids_for_a_target_without_a_tokenizer(
    cell: ProcessCell, plain: list[list[int]]
) -> None:
    words = ["generate", "--token-ids", ",".join(map(str, PROMPTS[0])), "--max-tokens", str(TOKENS)]
    shown = dspark(*words, "--temperature", "0", "--ignore-eos", "--endpoint", cell.endpoint)
    assert [int(word) for word in shown.split()] == plain[0]


def test_a_checkpoint_that_is_not_there_is_named_and_nothing_is_left(
    golden_drafter: Path, tmp_path: Path
) -> None:
    sound = {"engine": "synthetic", "synthetic": str(FLAT)}  # to be ended with the other
    cell = ProcessCell(tmp_path / "nowhere", golden_drafter, draft=sound, folder=tmp_path)
    with pytest.raises(Unavailable, match=r"verify/0 did not start: dspark: .*nowhere"):
        cell.start()
    assert not cell.children
