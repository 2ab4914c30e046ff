"""Coroutines of these tests run in simulated time, but for those of `IN_REAL_TIME`."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from coordinator.simulation.virtual_loop import run_virtual
from dspark.runtime.telemetry import Metrics

IN_REAL_TIME = {"test_http_connections.py", "test_process_config.py"}
LONGEST_S = 7200.0  # of simulated time; whoever hangs while others tick on would never end


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module, name: str, obj: object) -> None:
    test = name.startswith("test_") and inspect.iscoroutinefunction(obj)
    if test and collector.path.name not in IN_REAL_TIME:
        setattr(collector.obj, name, _virtual(obj))


def _virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        run_virtual(_without_noise(test(**fixtures)))

    return run


async def _without_noise(work: Coroutine[Any, Any, None]) -> None:
    """Nothing goes wrong where nobody waits for it."""
    wrong: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
    try:
        async with asyncio.timeout(LONGEST_S):
            await work
    finally:
        assert not wrong, wrong
