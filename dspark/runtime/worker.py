"""A worker process of either pool, from its start to its end, and what its services share.

A room provides its engine, its servicers and the function that closes them; everything else is the
same for both pools.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import structlog

from dspark.errors import ConfigError, Overloaded, Unavailable
from dspark.pages import EngineUsage
from dspark.runtime.cost_store import Curve
from dspark.runtime.device_worker import DeviceWorker
from dspark.runtime.process import keep_freed_memory, wait_briefly
from dspark.runtime.setting import check_settings
from dspark.runtime.shell import Servicer, ShellProcess
from dspark.targets import check_model
from dspark.types import RefusalReason
from dspark.wire import codec
from dspark.wire.v1 import types_pb2

log = structlog.get_logger("dspark.process")

_owners = itertools.count(1)
_LOOK_S = 0.05  # seconds between checks of what is still held


class WorkerEngine(Protocol):
    """The attributes of every worker's engine. Methods run on the thread that owns the device."""

    config: Any
    fingerprint: str
    device: Any
    dtype: str
    projection: str

    @property
    def held(self) -> EngineUsage: ...


E = TypeVar("E", bound=WorkerEngine)


def new_owner() -> int:
    """A number for a stream, unique in this process. What an engine opens belongs to a stream, and
    is freed with it."""
    return next(_owners)


class Farewell(asyncio.Event):
    """Set once a worker is draining, and never cleared."""

    _until = 0.0  # monotonic

    @property
    def left_ms(self) -> int:
        """Milliseconds until work that is left is ended; 0 before draining begins."""
        return max(int((self._until - time.monotonic()) * 1000), 0)

    def begin(self, grace_s: float) -> None:
        """Begins draining, with `grace_s` for present work."""
        if not self.is_set():
            self._until = time.monotonic() + grace_s
            self.set()


class Services(NamedTuple):
    """A room's servicers, and the function that closes their parts after the last call."""

    servicers: Sequence[Servicer]
    close: Callable[[], Awaitable[None]] = partial(asyncio.sleep, 0)


class Worker(ShellProcess, Generic[E]):
    """A serving worker, and what its services share. role: verify or draft.

    device: the thread that owns the engine. passes: a second one that computes what the first has
    prepared, where that pays.
    """

    last_s = 0.2
    # set before it serves
    engine: E
    cost: Curve | None
    services = Services(())

    def __init__(self, role: str, config: Any, name: str, model: str, *, passes: bool) -> None:
        super().__init__(role, config, lambda: model or config.engine)
        self.role, self.device = role, DeviceWorker(name)
        self.passes = DeviceWorker(f"{name}-passes") if passes else None
        self.draining = Farewell()

    @property
    def threads(self) -> list[DeviceWorker]:
        """The device threads, in the order in which they are closed."""
        return [each for each in (self.passes, self.device) if each is not None]

    def described(self, **waited: Any) -> dict[str, Any]:
        """The fields that the descriptions of both roles have. waited: what its load tells of
        waiting."""
        held, busy_s = asdict(self.engine.held), sum(each.busy_s for each in self.threads)
        return {
            "load": types_pb2.Load(**held, queued=self.device.queued, busy_s=busy_s, **waited),
            "incarnation": self.incarnation,
            "pid": os.getpid(),
            "fingerprint": self.engine.fingerprint,
            "page_size": self.engine.config.page_size,
            "device": str(self.engine.device),
            "dtype": self.engine.dtype,
            "cost": codec.write_cost(self.cost) if self.cost else None,
            "draining": self.draining.is_set(),
            "metrics_port": self.metrics_port,
            "warm": self.metrics.value("forward_seconds_count", kind=self.role) > 0,
        }

    def note_load(self) -> None:
        """Sets the metrics of what the engine holds."""
        held, there = self.engine.held, self.engine.held.pages_total
        self.metrics.sequences.set(held.sequences)
        self.metrics.pages_held.set(held.pages_held)
        self.metrics.kv_cache_usage.set(held.pages_held / there if there else 0.0)

    def refused(self, reason: RefusalReason) -> None:
        """Counts a refusal."""
        self.metrics.refusals.labels(reason=reason.name.lower()).inc()

    def _leave(self, grace_s: float) -> None:
        for each in self.threads:
            each.on_health = lambda healthy: None  # it serves no more, healthy or not
        self.draining.begin(grace_s)

    async def _empty(self, grace_s: float) -> None:
        # Sessions stay open as long as their coordinator lives, so this waits for the sequences in
        # them.
        await emptied(self.device, lambda: self.engine.held.sequences, grace_s)

    async def _close(self, grace_s: float) -> None:
        await self.services.close()
        for each in self.threads:
            each.close()


async def start_worker(
    role: str,
    config: Any,
    *,
    name: str,
    model: str,
    load: Callable[[], tuple[E, Curve | None]],
    services: Callable[[Worker[E]], Services],
    passes: bool = False,
) -> Worker[E]:
    """Starts a worker and serves the engine that `load` returns. `load` runs on the thread that
    computes, and may take minutes. passes: whether that is a second one beside the device's."""
    keep_freed_memory()
    wait_briefly()
    worker = Worker[E](role, config, name, model, passes=passes)
    try:
        engine, worker.cost = await worker.threads[0].run(load)
        worker.engine = engine
        worker.services = services(worker)
        worker.metrics.pages_total.set(engine.held.pages_total)
        await worker.open(worker.services.servicers)
        await worker.server.set_serving(True)
        for each in worker.threads:
            each.on_health = worker.server.say_serving
    except BaseException:
        await worker.abandon()
        raise
    log.info(
        f"{role}.serving",
        name=name,
        endpoint=worker.endpoint,
        model=(config.drafter if role == "draft" else config.target) or config.engine,
        device=str(engine.device),
        dtype=engine.dtype,
        pages=engine.held.pages_total,
        metrics_port=worker.metrics_port,
        projection=engine.projection or None,
    )
    return worker


def check_worker(role: str, config: Any) -> None:
    """Raises ConfigError by name for settings out of bounds, or that do not suit the engine."""
    check_settings(config, role)
    if config.engine == "synthetic" and not config.synthetic:
        raise ConfigError(f"{role}.synthetic: required with the synthetic engine and not given")
    if config.engine == "real" and config.synthetic:
        raise ConfigError(f"{role}.synthetic: of use with `engine: synthetic` only")
    if config.engine == "real":
        for key in ("target", "drafter"):
            if model := getattr(config, key):
                check_model(f"{role}.{key}", model)


async def emptied(device: DeviceWorker, held: Callable[[], int], longest_s: float) -> None:
    """Waits until nothing is held any more, for `longest_s` at most.

    The device thread runs `held` after the jobs it already has, because one of them may still open
    a sequence.
    """
    with contextlib.suppress(TimeoutError, Unavailable):
        async with asyncio.timeout(longest_s):
            while True:
                with contextlib.suppress(Overloaded):  # a full queue is work to wait for
                    if not await device.run(held):
                        return
                await asyncio.sleep(_LOOK_S)
