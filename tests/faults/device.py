"""A simulated worker's device: jobs one at a time, urgent ones first, for as long as is said."""

import asyncio
import contextlib
import heapq
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dspark.errors import Unavailable
from dspark.runtime.device_worker import DeviceWorker
from tests.faults.network import Network
from verify_service.running_step import RunningStep

SECONDS = {
    "judge_cohort": 0.005,
    "timed_draft": 0.002,
    "prefill_next": 0.005,
    "ingest_many": 0.0002,
}
OTHERWISE_S = 0.00002

# by a function's name, of what the function says itself
Seconds = Mapping[str, float | Callable[[Any], float]]


def _kind(function: Any) -> str:
    if isinstance(function, partial) and function.func.__name__ == "_computed":
        step: RunningStep = function.args[0]
        return "judge_cohort" if step._outcomes else "prefill_next"
    return getattr(function, "__name__", "")


class SimulatedDevice(DeviceWorker):
    """A `DeviceWorker` in simulated time: its queue, and the loop instead of its thread.

    A job has its effects when it ends, and none where the process has died in between: jobs hand on
    what they made themselves. seconds: of each kind of job, by the name of its function; or made of
    that function.
    """

    def __init__(self, network: Network, seconds: Seconds) -> None:
        self._seconds: dict[str, float | Callable[[Any], float]] = {**SECONDS, **seconds}
        self._node = network.here()
        self._working = False
        super().__init__(self._node.name)

    def close(self, wait_s: float = 0.0) -> None:
        self._closed = True

    def post(
        self,
        function: Callable[[], object],
        loop: asyncio.AbstractEventLoop,
        *,
        computes: bool = True,
    ) -> None:
        with contextlib.suppress(Unavailable):  # of a process that is dead
            super().post(function, loop, computes=computes)

    def _work(self) -> None:
        """The thread ends at once."""

    def here(self, function: Callable[[], object]) -> None:
        """The loop is whoever calls: behind the jobs that are under way."""
        self.post(function, asyncio.get_running_loop(), computes=False)

    def _put(self, rank: float, job: Any) -> None:
        if not self._node.alive:
            raise Unavailable("the device is shutting down")
        heapq.heappush(self._jobs, (rank, next(self._order), job))
        self._begin()

    def _begin(self) -> None:
        while self._jobs and not self._working:
            _, _, (loop, future, function, args, _) = heapq.heappop(self._jobs)
            if future is not None and future.cancelled():
                continue
            takes = self._seconds.get(_kind(function), OTHERWISE_S)
            seconds = takes(function) if callable(takes) else takes
            self._working = True  # what the job posts waits until it is over
            self.busy_s += seconds
            loop.call_later(
                seconds, self._node.when_awake, lambda job=(future, function, args): self._end(*job)
            )

    def _end(
        self,
        future: asyncio.Future[Any] | None,
        function: Callable[..., Any],
        args: tuple[Any, ...],
    ) -> None:
        result: Any = None
        error: Exception | None = None
        try:
            result = function(*args)
        except Exception as caught:  # handed to whoever asked
            error = caught
        self._working = False
        if future is not None and not future.done():
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
        self._begin()
