"""The parts of the distribution test that need no process."""

import numpy as np
import pytest

from tests.mutation.import_hook import named
from tests.wire_law import broken
from tests.wire_law.expected import next_law
from tests.wire_law.settings import SETTINGS
from tests.wire_law.statistics import holm, p_value, p_values


def test_a_law_is_cut_and_penalised_as_its_definitions_say() -> None:
    logits = np.log([0.5, 0.25, 0.15, 0.1])
    assert next_law(logits, (), (), {"temperature": 1.0}) == pytest.approx([0.5, 0.25, 0.15, 0.1])
    assert next_law(logits, (), (), {"temperature": 1.0, "top_k": 2}) == pytest.approx(
        [2 / 3, 1 / 3, 0, 0]
    )
    # 0.5 and 0.25 reach 0.7 of what top-k leaves; the third is not needed.
    assert next_law(
        logits, (), (), {"temperature": 1.0, "top_k": 3, "top_p": 0.8}
    ) == pytest.approx([2 / 3, 1 / 3, 0, 0])
    told = next_law(
        logits,
        (0,),
        (1, 1),
        {"temperature": 1.0, "frequency_penalty": 0.5, "presence_penalty": 0.2},
    )
    weights = np.array([0.5, 0.25 * np.exp(-1.2), 0.15, 0.1])
    assert told == pytest.approx(weights / weights.sum())
    told = next_law(
        logits, (0,), (1,), {"temperature": 1.0, "repetition_penalty": 2.0, "logit_bias": {0: 3.0}}
    )
    weights = np.array([np.exp((np.log(0.5) + 3) / 2), 0.25**2, 0.15, 0.1])
    assert told == pytest.approx(weights / weights.sum())


def test_p_is_large_for_the_law_itself_and_small_for_another() -> None:
    law = np.array([0.5, 0.25, 0.125, 0.125])
    assert p_value(law, np.array([400, 200, 100, 100])) == 1.0
    assert p_value(law, np.array([300, 300, 100, 100])) < 1e-6
    assert p_value(np.array([1.0, 0.0]), np.array([99, 1])) == 0.0


def test_a_shift_of_one_token_alone_shows_in_its_own_test() -> None:
    law = np.full(16, 1 / 16)
    counts = np.full((2, 2, 2, 2), 1000)
    counts[:, 1] += 60
    found = p_values(law, counts.ravel(), vocabulary=2, length=4)
    assert min(found, key=found.__getitem__) == "token 2"


def test_holm_corrects_each_value_for_all() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_the_broken_builds_are_there_to_break() -> None:
    settings = {setting.name for setting in SETTINGS}
    for name in broken.SHOWS_IN:
        assert named(name).file.startswith("dspark/decoding/")
    assert set(broken.SHOWS_IN.values()) <= settings
