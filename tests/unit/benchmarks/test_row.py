"""What every measurement prints."""

import pytest

from benchmarks.row import Row


@pytest.mark.parametrize(
    ("holds", "said", "code"), [(True, "holds", 0), (False, "FAILS", 1), (None, "not measured", 0)]
)
def test_a_row_says_whether_it_holds_in_words_and_by_its_exit_code(
    holds: bool | None, said: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Row(5, "same", 60, "all", holds).show(as_json=False) == code
    assert capsys.readouterr().out == f"{said}: same: 60 (bar: all)\n"
