"""The fit of each slot: applied as sigmoid(z / T + b), read by schema."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dspark.errors import CheckpointError
from dspark.model.calibration import (
    IDENTITY,
    Calibration,
    SlotFit,
    calibration_to_json,
    load_calibration,
    parse_calibration,
)

GREEDY = {"temperatures": [1.0, 2.0, 0.5], "offsets": [0.0, -1.0, 2.0]}
SAMPLED = {"temperatures": [1.5, 1.5, 1.5]}
THREES = {"temperatures": [3.0] * 3}
TOKEN: dict[str, Any] = {"greedy": GREEDY, "sampled": SAMPLED}
RAW: dict[str, Any] = {
    "version": 3,
    "top_k_cut": 64,
    "rules": {"token": TOKEN, "block": {"sampled": THREES}},
}


def test_each_slot_has_its_own_temperature_and_offset() -> None:
    calibration = parse_calibration(RAW, block_size=3)
    logits = np.array([[0.5, -2.0, 3.0]])
    expected = 1 / (1 + np.exp(-(logits / np.array([1.0, 2.0, 0.5]) + np.array([0.0, -1.0, 2.0]))))
    found = calibration.apply(logits, "greedy", "token")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-7)
    np.testing.assert_allclose(
        calibration.apply(logits[:, :2], "greedy", "token"), expected[:, :2], atol=1e-7
    )


def test_a_bucket_that_was_never_fitted_is_the_raw_sigmoid() -> None:
    only_greedy = parse_calibration(RAW | {"rules": {"block": {"greedy": THREES}}}, block_size=3)
    logits = [0.0, 1.0, -1.0]
    np.testing.assert_allclose(
        only_greedy.apply(logits, "sampled"), IDENTITY.apply(logits, "sampled")
    )
    np.testing.assert_allclose(IDENTITY.apply([0.0], "greedy"), [0.5])


def test_each_rule_has_its_own_and_one_that_was_not_fitted_borrows() -> None:
    calibration = parse_calibration(RAW, block_size=3)
    assert calibration.fit("sampled", "token") == SlotFit((1.5, 1.5, 1.5))
    assert calibration.fit("sampled", "block") == SlotFit((3.0, 3.0, 3.0))
    assert calibration.fit("sampled", "coupled") == SlotFit((3.0, 3.0, 3.0))
    assert calibration.fit("greedy", "block") is None
    logits = [2.0, 2.0, 2.0]
    assert (
        calibration.apply(logits, "sampled", "token")
        > calibration.apply(logits, "sampled", "block")
    ).all()


def test_extreme_logits_stay_inside_zero_and_one() -> None:
    found = IDENTITY.apply([-1e6, 1e6, float("-inf")], "greedy")
    np.testing.assert_array_equal(found, [0.0, 1.0, 0.0])


def test_no_file_means_the_identity(tmp_path: Path) -> None:
    assert load_calibration(tmp_path, block_size=3) == IDENTITY


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    wanted = Calibration(
        16,
        {
            "block": {"sampled": SlotFit((1.0, 2.0), (0.5, -0.5))},
            "token": {"greedy": SlotFit((0.5, 1.0))},
        },
    )
    (tmp_path / "calibration.json").write_text(json.dumps(calibration_to_json(wanted)))
    assert load_calibration(tmp_path, block_size=2) == wanted


def _fit(temperatures: list[Any], offsets: list[Any] | None = None) -> dict[str, Any]:
    return {"temperatures": temperatures} | ({} if offsets is None else {"offsets": offsets})


FITS: list[tuple[Any, str]] = [
    ([1.0] * 3, ": expected an object"),
    ({"bias": [1.0] * 3}, r"\.bias: expected one of temperatures, offsets"),
    ({}, r"\.temperatures: expected 3 numbers, found null"),
    (_fit([1.0]), r"\.temperatures: expected 3 numbers, found .1.0."),
    (_fit([1.0, 0.0, 1.0]), r"\.temperatures\[1\]: expected a positive number, found 0"),
    (_fit([1.0, 1.0, float("nan")]), r"\.temperatures\[2\]"),
    (_fit([1.0, 10**400, 1.0]), r"\.temperatures\[1\]: expected a positive number"),
    (_fit([1.0, "1", 1.0]), r"\.temperatures\[1\]"),
    (_fit([1.0] * 3, [0.0]), r"\.offsets: expected 3 numbers, found .0.0."),
    (_fit([1.0] * 3, [0.0, -(10**400), 0.0]), r"\.offsets\[1\]: expected a finite number"),
    (_fit([1.0] * 3, [0.0, float("inf"), 0.0]), r"\.offsets\[1\]: expected a finite number"),
]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"version": 2}, "version: expected 3, found 2"),
        ({"version": True}, "version"),
        ({"top_k_cut": 0}, "top_k_cut"),
        ({"rules": []}, "rules: expected an object"),
        ({"rules": {"tree": {}}}, r"rules\.tree: expected one of block, token, coupled"),
        ({"rules": {"block": []}}, r"rules\.block: expected an object"),
        ({"rules": {"block": {"warm": [1.0] * 3}}}, r"rules\.block\.warm"),
        *(({"rules": {"block": {"greedy": fit}}}, rf"rules\.block\.greedy{n}") for fit, n in FITS),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    (tmp_path / "calibration.json").write_text(json.dumps(RAW | change))
    with pytest.raises(CheckpointError, match=f"calibration.json: {named}"):
        load_calibration(tmp_path, block_size=3)


def test_text_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "calibration.json").write_text("{")
    with pytest.raises(CheckpointError, match="not readable as JSON"):
        load_calibration(tmp_path, block_size=3)
