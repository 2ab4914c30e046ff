"""A process between its start and a signal."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from dspark.runtime.shell import run_until_signal


async def test_what_goes_wrong_in_an_orderly_stop_is_raised() -> None:
    async def stop(grace_s: float) -> None:
        raise RuntimeError("the journal cannot be closed")

    async def start() -> Any:
        return SimpleNamespace(endpoint="h:1", incarnation=1, stop=stop)

    def ready(_: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(RuntimeError, match="journal"):
        await run_until_signal(start, grace_s=1.0, ready=ready)
