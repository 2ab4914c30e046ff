"""Stored cost curves: found under their own key only, and never trusted when damaged."""

from pathlib import Path

import numpy as np
import pytest
import structlog

from dspark.runtime import cost_store
from dspark.runtime.cost_store import Curve, load_curve, store_curve, stored_or_measured

KEY = {"role": "verify", "model": "abc", "threads": 1}


def curve() -> Curve:
    seconds = np.array([[1.0, 2], [2, 3], [4, 5]])
    return Curve(
        np.array([1, 2, 4]), np.array([128, 1024]), seconds, "measured", (0.25, 0.5), 8, (5,)
    )


def test_a_curve_is_found_under_its_own_key_alone() -> None:
    store_curve(KEY, curve())
    found = load_curve(KEY)
    assert found.source == "stored"
    np.testing.assert_array_equal(found.seconds, curve().seconds)
    np.testing.assert_array_equal(found.tokens, [1, 2, 4])
    assert (found.sequence_seconds, found.tokens_per_sequence, found.borrowed) == (
        (0.25, 0.5),
        8,
        (5,),
    )
    assert load_curve(KEY | {"threads": 2}) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("4.0", "NaN"),
        lambda text: text.replace("4.0", "-4.0"),
        lambda text: text.replace("128", "4096"),
        lambda text: text.replace("0.25", "NaN"),
        lambda text: text.replace("0.25,", ""),
        lambda text: text.replace('"borrowed": [\n  5', '"borrowed": [\n  6'),
        lambda text: "[]",
        lambda text: text.replace('"tokens"', '"tokins"'),
    ],
)
def test_a_damaged_file_is_as_good_as_none(damage) -> None:
    path = store_curve(KEY, curve())
    path.write_text(damage(path.read_text()))
    assert load_curve(KEY) is None


def test_a_state_folder_that_cannot_be_written_costs_convenience_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("DSPARK_HOME", str(tmp_path / "file" / "inside"))
    # one that no test before this one has configured
    monkeypatch.setattr(cost_store, "log", structlog.get_logger())
    with structlog.testing.capture_logs() as lines:
        found = stored_or_measured(KEY, curve)
    assert found is not None
    assert found.source == "measured"
    (told,) = [line for line in lines if line["event"] == "cost.not_stored"]
    assert "DSPARK_HOME names another" in told["reason"]
