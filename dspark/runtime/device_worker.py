"""The thread that owns the device; async callers await its jobs, so the event loop never waits for
a forward pass.

Jobs of rounds are urgent and run before ordinary ones, such as rows of a bulk stream, except for
those that have waited `LATER_S`, so that rounds without a pause do not starve them. The queue is
bounded: a full one is an overload, not a wait.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import structlog

from dspark.errors import DsparkError, Overloaded, Unavailable

log = structlog.get_logger("dspark.device")

T = TypeVar("T")

BROKEN = 3  # failures in a row
LATER_S = 0.25  # an urgent job that is queued so much later than an ordinary one runs after it


class DeviceWorker:
    """Runs functions one at a time on a thread of its own."""

    def __init__(self, name: str, *, limit: int = 4096) -> None:
        self._limit = limit
        self._order = itertools.count()
        # A heap for the order and a queue for waking: together they wake the thread 50 us sooner
        # than a PriorityQueue, which waits in Python. Pushes and pops of numbered tuples are
        # atomic, as nothing in them compares in Python.
        self._jobs: list[tuple[float, int, Any]] = []  # by their latest start
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._turn = threading.Lock()  # held while a job runs
        self._closed = False
        self.busy_s = 0.0  # worked so far; written by the device thread alone
        # Called on the event loop with False when several jobs in a row have failed, and with True
        # once one succeeds: a broken device fails every job, while a bad job fails alone.
        self.on_health: Callable[[bool], None] = lambda healthy: None
        self._failures = 0  # in a row
        self._thread = threading.Thread(target=self._work, name=f"device-{name}", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Jobs that wait for the device."""
        return len(self._jobs)

    def submit(
        self, function: Callable[..., T], *args: Any, urgent: bool = False
    ) -> asyncio.Future[T]:
        """Queues `function(*args)` for the device thread; the future belongs to the running event
        loop.

        Raises Overloaded when the queue is full and Unavailable after `close`. A job whose future
        is cancelled before it began is skipped.
        """
        if self._closed:
            raise Unavailable("the device is shutting down")
        if len(self._jobs) >= self._limit:
            raise Overloaded(f"{self._limit} jobs wait for the device", retry_after_s=0.1)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._put(0.0 if urgent else LATER_S, (loop, future, function, args, True))
        return future

    async def run(self, function: Callable[..., T], *args: Any, urgent: bool = False) -> T:
        """The result of `function(*args)` computed on the device thread; see `submit`."""
        return await self.submit(function, *args, urgent=urgent)

    async def run_surely(self, function: Callable[..., T], *args: Any) -> T:
        """Runs an urgent job that must not be skipped, such as freeing memory: waits until the
        queue has room.

        There is no deadline, as giving up would lose the memory: it ends with the job, or with
        Unavailable after `close`. Cancelling the caller does not cancel a queued job.
        """
        while True:
            try:
                return await asyncio.shield(self.submit(function, *args, urgent=True))
            except Overloaded as error:
                await asyncio.sleep(error.retry_after_s)

    def post(
        self,
        function: Callable[[], object],
        loop: asyncio.AbstractEventLoop,
        *,
        computes: bool = True,
    ) -> None:
        """Queues an urgent job without a result, from any thread; after `close` it is dropped. Its
        errors are logged. loop: where `on_health` is called. computes: whether its outcome counts
        for the device's health."""
        if not self._closed:
            self._put(0.0, (loop, None, function, (), computes))

    def here(self, function: Callable[[], object]) -> None:
        """Runs a job like those of `post` at once in the calling thread, between two jobs of the
        device thread: for threads that may block, and would only queue it."""
        with self._turn:
            if self._closed:
                return
            try:
                function()
            except Exception as error:
                log.error("device.failed", exc_info=error)

    def close(self, wait_s: float = 5.0) -> None:
        """Finishes what is queued, then ends the thread; waits at most `wait_s`."""
        if not self._closed:
            self._closed = True
            self._put(math.inf, None)
        self._thread.join(timeout=wait_s)

    def _put(self, later_s: float, job: Any) -> None:
        heapq.heappush(self._jobs, (time.monotonic() + later_s, next(self._order), job))
        self._calls.put(None)

    def _work(self) -> None:
        while True:
            self._calls.get()
            _, _, job = heapq.heappop(self._jobs)
            if job is None:
                return
            loop, future, function, args, computes = job
            if future is not None and future.cancelled():
                continue
            with self._turn:
                began = time.monotonic()
                try:
                    result, error = function(*args), None
                except BaseException as caught:  # handed to the caller, whatever it is
                    result, error = None, caught
            self.busy_s += time.monotonic() - began
            changed = self._judge(error) if computes else None
            try:
                if changed is not None:  # reported before the result is
                    loop.call_soon_threadsafe(self.on_health, changed)
                if future is not None:
                    loop.call_soon_threadsafe(_settle, future, result, error)
                elif error is not None:
                    log.error("device.failed", exc_info=error)
            except RuntimeError:  # the caller's loop has closed
                continue

    def _judge(self, error: BaseException | None) -> bool | None:
        """Whether the device is healthy, if that has just changed; else None."""
        before = self._failures
        self._failures = (
            before + 1 if error is not None and not isinstance(error, DsparkError) else 0
        )
        if self._failures == BROKEN:
            return False
        return True if before >= BROKEN and not self._failures else None


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
