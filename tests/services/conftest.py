"""What several tests of services begin with."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.services.cell import Cell


@pytest_asyncio.fixture
async def cell(golden_target: Path, golden_drafter: Path) -> AsyncIterator[Cell]:
    """Of the tiny pair; nobody is there yet."""
    async with Cell(golden_target, golden_drafter) as made:
        yield made
