"""The arithmetic behind the measurements."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.pair import distinct
from benchmarks.row import Row
from benchmarks.sampled_law import chi_square


def test_chi_square_is_zero_for_the_law_itself_and_large_for_another() -> None:
    law = [0.5, 0.25, 0.125, 0.125]
    assert chi_square(law, Counter({0: 400, 1: 200, 2: 100, 3: 100})) == (0.0, 4)
    statistic, cells = chi_square(law, Counter({0: 300, 1: 300, 2: 100, 3: 100}))
    assert cells == 4
    assert statistic == pytest.approx(100**2 / 400 + 100**2 / 200)


def test_rare_answers_share_a_cell_and_an_impossible_one_is_not_forgiven() -> None:
    assert chi_square([0.98, 0.01, 0.01], Counter({0: 98, 1: 2})) == (0.0, 2)
    statistic, _ = chi_square([0.999999, 0.000001], Counter({0: 90, 1: 10}))
    assert statistic > 1e5


def test_repeated_text_has_few_distinct_n_grams() -> None:
    assert distinct(range(100)) == 1.0
    assert distinct([7] * 100) == pytest.approx(1 / 97)
    assert distinct([1, 2, 3]) == 1.0


def test_a_row_that_fails_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert Row(5, "same", {"identical": 59}, "all", False).show(as_json=True) == 1
    assert capsys.readouterr().out == (
        '{"row": 5, "name": "same", "value": {"identical": 59}, "bar": "all", "holds": false}\n'
    )
    assert Row(5, "same", 60, "all", True).show(as_json=False) == 0
    assert capsys.readouterr().out == "holds: same: 60 (bar: all)\n"
