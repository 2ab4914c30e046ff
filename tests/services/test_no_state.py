"""A state folder that cannot be written costs convenience, and no process."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog
import workers

from draft_service import profiler as draft_profiler
from dspark.runtime import cost_store
from verify_service import profiler as verify_profiler


async def test_workers_measure_and_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden_target: Path, golden_drafter: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("DSPARK_HOME", str(tmp_path / "file" / "inside"))
    for profiler in (verify_profiler, draft_profiler):
        monkeypatch.setattr(profiler, "MOST_SWEEPS", 1)
    # one that no test before this one has configured
    monkeypatch.setattr(cost_store, "log", structlog.get_logger())
    with structlog.testing.capture_logs() as lines:
        async with (
            workers.verifier(golden_target, measure_cost=True, cost_max_tokens=8),
            workers.drafter(golden_drafter, measure_cost=True, cost_max_sequences=2),
        ):
            pass
    told = [line for line in lines if line["event"] == "cost.not_stored"]
    assert len(told) == 2
    assert all("DSPARK_HOME names another" in line["reason"] for line in told)
