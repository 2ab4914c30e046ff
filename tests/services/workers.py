"""Real processes of a cell in this one, over loopback, for tests; each ends with its block."""

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
GRACE_S = 0.2
QUIET: dict[str, Any] = {"metrics_port": None}
UNMEASURED: dict[str, Any] = {**QUIET, "measure_cost": False}


@contextlib.asynccontextmanager
async def _serving(starting: Awaitable[ShellProcess]) -> AsyncIterator[ShellProcess]:
    process = await starting
    try:
        yield process
    finally:
        await process.stop(GRACE_S)


def verifier(
    target: Any = "", drafter: Any = "", name: str = "verify/0", **settings: Any
) -> Serving:
    paths = {name: str(path) for name, path in (("target", target), ("drafter", drafter)) if path}
    config = VerifyConfig(**{**paths, **UNMEASURED, **settings})
    return _serving(verify_process.start(config, name=name))


def drafter(path: Any = "", name: str = "draft/0", **settings: Any) -> Serving:
    paths = {"drafter": str(path)} if path else {}
    config = DraftConfig(**{**paths, **UNMEASURED, **settings})
    return _serving(draft_process.start(config, name=name))


def coordinator(**settings: Any) -> Serving:
    return _serving(coordinator_process.start(CoordinatorConfig(**{**QUIET, **settings})))


def frontend(name: str = "frontend/0", **settings: Any) -> Serving:
    return _serving(frontend_process.start(FrontendConfig(**{**QUIET, **settings}), name=name))


def simulated(pair: Any) -> dict[str, Any]:
    return {"engine": "synthetic", "synthetic": str(pair), "measure_cost": True}
