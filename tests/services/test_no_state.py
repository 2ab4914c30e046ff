"""A state folder that cannot be written costs convenience, and no process."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from draft_service import process as draft_process
from draft_service import profiler as draft_profiler
from draft_service.config import DraftConfig
from verify_service import process as verify_process
from verify_service import profiler as verify_profiler
from verify_service.config import VerifyConfig

pytestmark = pytest.mark.services


async def test_workers_measure_and_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden_target: Path, golden_drafter: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("DSPARK_HOME", str(tmp_path / "file" / "inside"))
    for profiler in (verify_profiler, draft_profiler):
        monkeypatch.setattr(profiler, "MOST_SWEEPS", 1)
    with structlog.testing.capture_logs() as lines:
        verifier = await verify_process.start(VerifyConfig(target=str(golden_target), cost_max_tokens=8))
        drafter = await draft_process.start(DraftConfig(drafter=str(golden_drafter), cost_max_sequences=2))
        await drafter.stop(0.0)
        await verifier.stop(0.0)
    told = [line for line in lines if line["event"] == "cost.not_stored"]
    assert len(told) == 2
    assert all("DSPARK_HOME names another" in line["reason"] for line in told)
