"""Real workers in this process, over loopback, for tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from draft_service import process as draft_process
from draft_service.config import DraftConfig
from dspark.runtime.worker import WorkerProcess
from verify_service import process as verify_process
from verify_service.config import VerifyConfig


@contextlib.asynccontextmanager
async def verifier(target: Any, drafter: Any = None, **settings: Any) -> AsyncIterator[WorkerProcess[Any]]:
    config = VerifyConfig(
        target=str(target), drafter=str(drafter) if drafter else None, **{"measure_cost": False, **settings}
    )
    process = await verify_process.start(config)
    try:
        yield process
    finally:
        await process.stop(1.0)


@contextlib.asynccontextmanager
async def drafter(path: Any, **settings: Any) -> AsyncIterator[WorkerProcess[Any]]:
    process = await draft_process.start(DraftConfig(drafter=str(path), **{"measure_cost": False, **settings}))
    try:
        yield process
    finally:
        await process.stop(1.0)


async def until(condition: Any, deadline_s: float = 30.0) -> None:
    """Waits for something that another task brings about."""
    for _ in range(int(deadline_s / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not so within {deadline_s} s")
