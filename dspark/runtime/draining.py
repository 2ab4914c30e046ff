"""Whether a worker is about to leave, and who has to hear of it at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

from dspark.errors import Overloaded, Unavailable
from dspark.runtime.device_worker import DeviceWorker

_LOOK_S = 0.05  # between looks at what is still held


class Farewell:
    """Begins once and never ends."""

    def __init__(self) -> None:
        self._until: float | None = None  # monotonic
        self._listeners: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        return self._until is not None

    @property
    def left_ms(self) -> int:
        """Milliseconds until whatever is still here ends."""
        return max(int((self._until - time.monotonic()) * 1000), 0) if self._until is not None else 0

    def begin(self, grace_s: float) -> None:
        """Takes nobody new from now on, and ends the others after `grace_s`."""
        if self._until is None:
            self._until = time.monotonic() + grace_s
            for tell in list(self._listeners):
                tell()

    def listen(self, tell: Callable[[], None]) -> None:
        """`tell` is called when it begins, until it leaves; at once if it has begun. From any thread."""
        self._listeners.append(tell)
        if self._until is not None:
            tell()

    def leave(self, tell: Callable[[], None]) -> None:
        """It is called no more."""
        self._listeners.remove(tell)

    @contextlib.contextmanager
    def telling(self, tell: Callable[[], None]) -> Iterator[None]:
        """Inside, `tell` listens."""
        self.listen(tell)
        try:
            yield
        finally:
            self.leave(tell)


async def emptied(device: DeviceWorker, held: Callable[[], int], longest_s: float) -> None:
    """Until nothing is held any more, or for so long.

    The device thread is who looks, after whatever it was asked before: a sequence may have been let in that it has not
    taken up yet.
    """
    with contextlib.suppress(TimeoutError, Unavailable):
        async with asyncio.timeout(longest_s):
            while True:
                with contextlib.suppress(Overloaded):  # so many jobs are something to wait for
                    if not await device.run(held):
                        return
                await asyncio.sleep(_LOOK_S)
