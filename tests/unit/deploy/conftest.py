"""The configuration file of a cell."""

from collections.abc import Callable
from pathlib import Path

import pytest

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        (tmp_path / "cell.yaml").write_text(text)
        return tmp_path / "cell.yaml"

    return write
