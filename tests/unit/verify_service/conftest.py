"""Engines of the tiny pair."""

from collections.abc import Callable
from pathlib import Path

import pytest

from verify_service.config import VerifyConfig
from verify_service.engine import VerifyEngine


@pytest.fixture
def load(golden_target: Path, golden_drafter: Path) -> Callable[..., VerifyEngine]:
    """An engine of the tiny pair under some settings."""
    pair = {"target": str(golden_target), "drafter": str(golden_drafter)}
    return lambda **settings: VerifyEngine.load(VerifyConfig(**pair | settings))
