"""Simulated time for the whole process: a loop that jumps, and every clock on its time."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar, TypeVarTuple, Unpack
from unittest import mock

from coordinator.simulation.virtual_loop import VirtualLoop
from dspark.synthetic.pace import DevicePace

T = TypeVar("T")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class _Loop(VirtualLoop):
    """Work for threads is done on the spot."""

    def run_in_executor(
        self, executor: Any, func: Callable[[Unpack[Ts]], R], *args: *Ts
    ) -> asyncio.Future[R]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


class Simulation:
    """A loop whose time jumps, with every clock of the process on that time while it is entered."""

    def __init__(self, seed: int = 0) -> None:
        self.loop = _Loop()
        self._draw = random.Random(f"simulated/{seed}")
        self._stack = contextlib.ExitStack()

    def _now_ns(self) -> int:
        return int(self.loop.time() * 1e9)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def enter(self, context: contextlib.AbstractContextManager[T]) -> T:
        """Left again when the simulation ends."""
        return self._stack.enter_context(context)

    def __enter__(self) -> Self:
        asyncio.set_event_loop(self.loop)
        now = self.loop.time
        self.enter(mock.patch.object(time, "monotonic", now))
        self.enter(mock.patch.object(time, "perf_counter", now))
        self.enter(mock.patch.object(time, "perf_counter_ns", self._now_ns))
        self.enter(mock.patch("secrets.randbits", self._draw.getrandbits))
        self.enter(mock.patch.object(DevicePace, "sleep_until"))  # the device's own time
        # ports are of its own network
        self.enter(mock.patch("dspark.runtime.addresses._tried", lambda key, host, port: host))
        return self

    def __exit__(self, *_: object) -> None:
        try:
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            self._stack.close()
            asyncio.set_event_loop(None)
            self.loop.close()
