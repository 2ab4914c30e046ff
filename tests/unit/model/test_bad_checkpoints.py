"""Whatever can be wrong with a checkpoint is refused by both loaders, by the name of what is wrong:
the cases of `tests/faults`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dspark.errors import CheckpointError
from dspark.model.checkpoint import load_drafter, load_target
from dspark.model.target_check import check_target_headers
from dspark.model.weights_file import read_directory
from tests.faults.bad_checkpoints import CONFIGS, WEIGHTS
from tests.unit.model.golden import DATA, altered

PAIR = DATA / "pair"
LARGE = ("150 000 empty tensors", "config of 100 MB")  # which take seconds to write
CASES = {name: case for name, case in {**WEIGHTS, **CONFIGS}.items() if name not in LARGE}


@pytest.mark.parametrize(
    ("load", "sound"),
    [(load_drafter, PAIR / "drafter"), (load_target, PAIR / "target")],
    ids=["drafter", "target"],
)
@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_by_name(
    case: str, load: Callable[[Path], Any], sound: Path, tmp_path: Path
) -> None:
    spoil, named = CASES[case]
    folder = altered(tmp_path / "model", of=sound)
    spoil(folder)
    with pytest.raises(CheckpointError, match=named) as refused:
        load(folder)
    assert str(refused.value).startswith(f"{folder}")


def test_a_tensor_too_many_of_a_target_is_refused_before_the_library_reads_any() -> None:
    entries = read_directory(PAIR / "target")
    with pytest.raises(CheckpointError, match="unexpected keys: extra"):
        check_target_headers(PAIR / "target", entries | {"extra": entries["model.norm.weight"]})
