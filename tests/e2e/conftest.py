"""The cell that most tests here talk to."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.processes import ProcessCell


@pytest.fixture(scope="session")
def cell(
    golden_target: Path, golden_drafter: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProcessCell]:
    """Three processes of the tiny pair, which measured a small cost curve; not to be hurt."""
    cell = ProcessCell(
        golden_target,
        golden_drafter,
        verify={"cost_max_tokens": 32},
        draft={"cost_max_sequences": 8},
        folder=tmp_path_factory.mktemp("cell"),
    )
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OMP_DISPLAY_ENV", "VERBOSE")  # into the logs
            patch.delenv("GOMP_SPINCOUNT", raising=False)
            patch.setenv("DSPARK_HOME", str(tmp_path_factory.mktemp("home")))
            stack.enter_context(cell)
        yield cell
