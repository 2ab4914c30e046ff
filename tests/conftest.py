"""What every test may rely on: one torch thread, a state folder of its own, and no Ray outside
tests/ray."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # a busy machine fails no example
settings.load_profile("untimed")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _own_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Nothing a test does may touch the user's clusters or stored cost curves."""
    if request.node.get_closest_marker("ray") is None:
        monkeypatch.setenv("DSPARK_HOME", str(tmp_path / "dspark-home"))


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """What a test sets up for a process of its own is not half of the next one's."""
    before = structlog.get_config() if structlog.is_configured() else None
    yield
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


@pytest.fixture(autouse=True)
def _ray_stays_at_the_edge(request: pytest.FixtureRequest) -> None:
    """A test that needs a cluster carries the mark `ray`; any other that starts one is in the wrong
    folder."""
    if request.node.get_closest_marker("ray") is None:
        ray = sys.modules.get("ray")
        assert ray is None or not ray.is_initialized()


@pytest.fixture(scope="session")
def golden_target() -> Path:
    """A tiny Qwen3 target: 6 layers, hidden 64, vocabulary 128."""
    return ROOT / "tests" / "data" / "target_qwen3"


@pytest.fixture(scope="session")
def golden_drafter() -> Path:
    """A tiny DSpark drafter for it: block 7, vanilla head, confidence head."""
    return ROOT / "tests" / "data" / "dspark_vanilla"
