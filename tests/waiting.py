"""Waiting for what others bring about; long enough that a loaded machine fails nothing."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 60.0


async def until(
    holds: Callable[[], Any], within_s: float = PATIENCE_S, each_s: float = 0.01
) -> None:
    """On the event loop that others work on too, in whose time it is."""
    now = asyncio.get_running_loop().time
    deadline = now() + within_s
    while not holds():
        assert now() < deadline, f"not so within {within_s:g} s"
        await asyncio.sleep(each_s)


def came(holds: Callable[[], Any], within_s: float = PATIENCE_S) -> bool:
    """Waits for other threads and processes; whether it came true in time."""
    deadline = time.monotonic() + within_s
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(held)


def wait_until(holds: Callable[[], Any], within_s: float = PATIENCE_S) -> None:
    assert came(holds, within_s), f"not so within {within_s:g} s"
