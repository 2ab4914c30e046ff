"""Coroutines of these tests run in simulated time, but for those of `IN_REAL_TIME`."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from coordinator.simulation.virtual_loop import run_virtual
from dspark.runtime.telemetry import Metrics
from tests.rounds_cell import RoundsCell

IN_REAL_TIME = {"test_http_connections.py", "test_process_config.py"}
LONGEST_S = 7200.0  # of simulated time; whoever hangs while others tick on would never end


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def cell() -> type[RoundsCell]:
    """A cell with a verifier and a drafter; it is made in the loop of the test."""
    return RoundsCell


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module, name: str, obj: object) -> None:
    test = name.startswith("test_") and inspect.iscoroutinefunction(obj)
    if test and collector.path.name not in IN_REAL_TIME:
        setattr(collector.obj, name, _virtual(obj))


def _virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        run_virtual(_without_noise(test, fixtures))

    return run


async def _without_noise(test: Callable[..., Coroutine[Any, Any, None]], fixtures: Any) -> None:
    """Nothing goes wrong where nobody waits for it."""
    given = {name: each() if each is RoundsCell else each for name, each in fixtures.items()}
    wrong: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
    try:
        async with asyncio.timeout(LONGEST_S):
            await test(**given)
    finally:
        assert not wrong, wrong
