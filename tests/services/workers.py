"""Real workers in this process, over loopback, for tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any

from draft_service import process as draft_process
from draft_service.config import DraftConfig
from dspark.runtime.worker import WorkerProcess
from verify_service import process as verify_process
from verify_service.config import VerifyConfig

Serving = contextlib.AbstractAsyncContextManager[WorkerProcess[Any]]


@contextlib.asynccontextmanager
async def _serving(starting: Awaitable[WorkerProcess[Any]], grace_s: float) -> AsyncIterator[WorkerProcess[Any]]:
    process = await starting
    try:
        yield process
    finally:
        await process.stop(grace_s)


def verifier(target: Any = None, drafter: Any = None, grace_s: float = 1.0, **settings: Any) -> Serving:
    paths = {name: str(path) for name, path in (("target", target), ("drafter", drafter)) if path}
    config = VerifyConfig(**{**paths, "measure_cost": False, **settings})
    return _serving(verify_process.start(config), grace_s)


def drafter(path: Any = None, grace_s: float = 1.0, **settings: Any) -> Serving:
    paths = {"drafter": str(path)} if path else {}
    return _serving(draft_process.start(DraftConfig(**{**paths, "measure_cost": False, **settings})), grace_s)


async def until(condition: Any, deadline_s: float = 30.0) -> None:
    """Waits for something that another task brings about."""
    for _ in range(int(deadline_s / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not so within {deadline_s} s")
