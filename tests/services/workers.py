"""Real processes of a cell in this one, over loopback, for tests; each ends with its block."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any

from coordinator import process as coordinator_process
from coordinator.config import CoordinatorConfig, FrontendConfig
from coordinator.frontend import process as frontend_process
from draft_service import process as draft_process
from draft_service.config import DraftConfig
from dspark.runtime.shell import ShellProcess
from verify_service import process as verify_process
from verify_service.config import VerifyConfig

Serving = contextlib.AbstractAsyncContextManager[Any]


@contextlib.asynccontextmanager
async def _serving(
    starting: Awaitable[ShellProcess], grace_s: float
) -> AsyncIterator[ShellProcess]:
    process = await starting
    try:
        yield process
    finally:
        await process.stop(grace_s)


def verifier(
    target: Any = None,
    drafter: Any = None,
    grace_s: float = 1.0,
    name: str = "verify/0",
    **settings: Any,
) -> Serving:
    paths = {name: str(path) for name, path in (("target", target), ("drafter", drafter)) if path}
    config = VerifyConfig(**{**paths, "measure_cost": False, **settings})
    return _serving(verify_process.start(config, name=name), grace_s)


def drafter(
    path: Any = None, grace_s: float = 1.0, name: str = "draft/0", **settings: Any
) -> Serving:
    paths = {"drafter": str(path)} if path else {}
    config = DraftConfig(**{**paths, "measure_cost": False, **settings})
    return _serving(draft_process.start(config, name=name), grace_s)


def coordinator(grace_s: float = 0.0, **settings: Any) -> Serving:
    config = CoordinatorConfig(**{"metrics_port": None, **settings})
    return _serving(coordinator_process.start(config), grace_s)


def frontend(grace_s: float = 0.0, name: str = "frontend/0", **settings: Any) -> Serving:
    config = FrontendConfig(**{"metrics_port": None, **settings})
    return _serving(frontend_process.start(config, name=name), grace_s)


def simulated(pair: Any) -> dict[str, Any]:
    """Settings of a worker of a synthetic pair."""
    return {"engine": "synthetic", "synthetic": str(pair), "measure_cost": True}
