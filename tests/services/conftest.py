"""What several tests of services begin with."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dspark.client import AsyncClient
from tests.services.cell import Cell


@pytest.fixture
async def cell(golden_target: Path, golden_drafter: Path) -> AsyncIterator[Cell]:
    """Of the tiny pair; nobody is there yet."""
    async with Cell(golden_target, golden_drafter) as made:
        yield made


@pytest.fixture
async def client(cell: Cell) -> AsyncClient:
    """Of a whole cell."""
    return cell.client(await cell.whole())


@pytest.fixture
async def v(cell: Cell, request: pytest.FixtureRequest) -> Any:
    """A verifier of the cell, with settings that a test names."""
    return await cell.verifier(**getattr(request, "param", {}))
