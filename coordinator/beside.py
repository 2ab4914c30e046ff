"""Work that takes long goes beside the event loop, so that everybody else goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def beside(long: bool, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """What `work` returns. What is not `long` takes less time than a thread does."""
    return await asyncio.to_thread(work, *args, **options) if long else work(*args, **options)
