"""Engines and the target of the tiny pair."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dspark.model.checkpoint import LoadedTarget, load_target
from verify_service.config import VerifyConfig
from verify_service.engine import VerifyEngine


@pytest.fixture
def load(golden_target: Path, golden_drafter: Path) -> Callable[..., VerifyEngine]:
    """An engine of the tiny pair under some settings."""
    pair = {"target": str(golden_target), "drafter": str(golden_drafter)}
    return lambda **settings: VerifyEngine.load(VerifyConfig(**pair | settings))


@pytest.fixture
def engine(load: Callable[..., VerifyEngine]) -> VerifyEngine:
    return load(kv_tokens=2048, prefill_chunk=4)


@pytest.fixture(scope="module")
def target(golden_target: Path) -> LoadedTarget:
    return load_target(golden_target)
