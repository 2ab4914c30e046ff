"""The device of a simulated worker: jobs one at a time, urgent ones first, each for as long as it is said to take."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import heapq
from collections.abc import Callable, Mapping
from typing import Any

from dspark.errors import Unavailable
from dspark.runtime.device_worker import DeviceWorker
from faults.network import Network

SECONDS = {"judge_cohort": 0.005, "timed_draft": 0.002, "prefill_next": 0.005, "ingest_many": 0.0002}
OTHERWISE_S = 0.00002


class SimulatedDevice(DeviceWorker):
    """A `DeviceWorker` in simulated time: its queue, and the loop instead of its thread.

    A job's effects on the device happen when it begins; who asked hears of it when it ends, unless the process has
    died in between. seconds: of each kind of job, by the name of its function; or a function of the job's arguments.
    at_end: effects happen when a job ends, as of one that computes apart and says itself that it is over.
    """

    def __init__(
        self, network: Network, seconds: Mapping[str, float | Callable[..., float]], *, at_end: bool = False
    ) -> None:
        self._at_end = at_end
        self._seconds: dict[str, float | Callable[..., float]] = {**SECONDS, **seconds}
        self._node = network.here()
        self._working = False
        super().__init__(self._node.name)

    def close(self) -> None:
        self._closed = True

    def post(self, function: Callable[[], object], loop: asyncio.AbstractEventLoop, *, computes: bool = True) -> None:
        with contextlib.suppress(Unavailable):  # of a process that is dead
            super().post(function, loop, computes=computes)

    def _work(self) -> None:
        """The thread ends at once."""

    def here(self, function: Callable[[], object]) -> None:
        """The loop is whoever calls: behind the jobs that are under way."""
        self.post(function, asyncio.get_running_loop(), computes=False)

    def _put(self, rank: int, job: Any) -> None:
        if not self._node.alive:
            raise Unavailable("the device is shutting down")
        heapq.heappush(self._jobs, (rank, next(self._order), job))
        self._begin()

    def _begin(self) -> None:
        while self._jobs and not self._working:
            _, _, (loop, future, function, args, _) = heapq.heappop(self._jobs)
            if future is not None and future.cancelled():
                continue
            takes = self._seconds.get(getattr(function, "__name__", ""), OTHERWISE_S)
            seconds = takes(*args) if callable(takes) else takes
            if self._at_end:
                self._working = True
                self.busy_s += seconds
                loop.call_later(seconds, self._node.when_awake, lambda function=function: self._finish(function))
                continue
            result: Any = None
            error: Exception | None = None
            self._working = True  # what this job posts waits until it is over
            try:
                result = _timed(function(*args), int(seconds * 1e9))
            except Exception as caught:  # handed to whoever asked
                error = caught
            self.busy_s += seconds
            loop.call_later(seconds, self._node.when_awake, lambda done=(future, result, error): self._over(*done))

    def _finish(self, function: Callable[[], object]) -> None:
        with contextlib.suppress(Exception):  # its own affair
            function()
        self._over(None, None, None)

    def _over(self, future: asyncio.Future[Any] | None, result: Any, error: Exception | None) -> None:
        self._working = False
        if future is not None and not future.done():
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        self._begin()


def _timed(result: Any, nanoseconds: int) -> Any:
    """What the engine measured of itself is replaced by what the simulation says."""
    if dataclasses.is_dataclass(result) and hasattr(result, "forward_ns"):
        return dataclasses.replace(result, forward_ns=nanoseconds)  # type: ignore[type-var]
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], list) and isinstance(result[1], int):
        return result[0], nanoseconds  # blocks and their time
    return result
