"""A target's weights are compared with its model by their headers, before the library reads any."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dspark.errors import CheckpointError
from dspark.model.target_check import check_target_headers, check_target_values
from dspark.model.weights_file import TensorEntry, read_directory
from tests.unit.model.golden import DATA

FOLDER = DATA / "target_qwen3"
NORM = "model.norm.weight"


@pytest.fixture
def entries() -> dict[str, TensorEntry]:
    return read_directory(FOLDER)


def test_a_sound_target_passes(entries: dict[str, TensorEntry]) -> None:
    check_target_headers(FOLDER, entries)
    assert check_target_values(entries)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"shape": (7,)}, rf"mismatched keys: {NORM} \[7\] instead of"),
        ({"dtype": "I32"}, f"not floating point: {NORM} I32"),
        ({"dtype": "C64"}, f"not floating point: {NORM} C64"),
        ({"dtype": "BOOL"}, f"not floating point: {NORM} BOOL"),
    ],
)
def test_what_differs_is_named(
    entries: dict[str, TensorEntry], change: dict[str, object], named: str
) -> None:
    entries[NORM] = dataclasses.replace(entries[NORM], **change)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=named):
        check_target_headers(FOLDER, entries)


def test_a_tensor_too_many_is_refused_unless_others_have_other_names(
    entries: dict[str, TensorEntry],
) -> None:
    entries["extra"] = entries[NORM]
    with pytest.raises(CheckpointError, match="unexpected keys: extra"):
        check_target_headers(FOLDER, entries)
    del entries[NORM]  # `extra` may be what the library renames to it
    check_target_headers(FOLDER, entries)


def test_a_model_that_cannot_be_built_yet_is_left_to_the_library(
    entries: dict[str, TensorEntry], tmp_path: Path
) -> None:
    entries["extra"] = entries[NORM]
    check_target_headers(tmp_path, entries)


def test_values_in_formats_that_are_not_read_here_are_left_for_later(
    entries: dict[str, TensorEntry],
) -> None:
    entries[NORM] = dataclasses.replace(entries[NORM], dtype="F8_E4M3")
    assert not check_target_values(entries)
