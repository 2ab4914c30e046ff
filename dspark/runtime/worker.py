"""A worker process of either pool, from configuration to SERVING and back, and what its services
share.

A room brings its engine, its servicers and what has to be closed with them; everything else is the
same for both.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import structlog

from dspark.errors import ConfigError, Overloaded, Unavailable
from dspark.pages import Held
from dspark.runtime.cost_store import Curve
from dspark.runtime.device_worker import DeviceWorker
from dspark.runtime.process import keep_freed_memory, wait_briefly
from dspark.runtime.security import Security
from dspark.runtime.setting import check_settings
from dspark.runtime.shell import Servicer, Shell, ShellProcess
from dspark.runtime.telemetry import Metrics
from dspark.types import RefusalReason
from dspark.wire import codec

log = structlog.get_logger("dspark.process")

_owners = itertools.count(1)
_LOOK_S = 0.05  # between looks at what is still held


class WorkerEngine(Protocol):
    """What every engine of a worker has. Methods run on the thread that owns the device."""

    @property
    def config(self) -> Any: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def device(self) -> object: ...

    @property
    def dtype(self) -> str: ...

    @property
    def projection(self) -> str: ...

    @property
    def held(self) -> Held: ...


E = TypeVar("E", bound=WorkerEngine)


def new_owner() -> int:
    """Names a stream among all of this process: what an engine opens belongs to one, and is freed
    with it."""
    return next(_owners)


class Farewell:
    """Whether a worker is about to leave, and who has to hear of it at once. Begins once and never
    ends."""

    def __init__(self) -> None:
        self._until: float | None = None  # monotonic
        self._listeners: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        return self._until is not None

    @property
    def left_ms(self) -> int:
        """Milliseconds until whatever is still here ends."""
        return (
            max(int((self._until - time.monotonic()) * 1000), 0) if self._until is not None else 0
        )

    def begin(self, grace_s: float) -> None:
        """Takes nobody new from now on, and ends the others after `grace_s`."""
        if self._until is None:
            self._until = time.monotonic() + grace_s
            for tell in list(self._listeners):
                tell()

    def listen(self, tell: Callable[[], None]) -> None:
        """`tell` is called when it begins, until it leaves; at once if it has begun. From any
        thread."""
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


@dataclass
class Worker(Generic[E]):
    """What the services of one worker share. role: verify or draft.

    device: the thread that owns the engine. passes: one that computes what the other has prepared,
    where that pays.
    """

    role: str
    engine: E
    device: DeviceWorker
    shell: Shell
    cost: Curve | None = None
    passes: DeviceWorker | None = None
    draining: Farewell = field(default_factory=Farewell)

    @property
    def metrics(self) -> Metrics:
        return self.shell.metrics

    @property
    def security(self) -> Security:
        return self.shell.security

    @property
    def incarnation(self) -> int:
        return self.shell.incarnation

    @property
    def threads(self) -> list[DeviceWorker]:
        """In the order in which they end."""
        return [each for each in (self.passes, self.device) if each is not None]

    def described(self) -> dict[str, Any]:
        """The fields that the descriptions of both roles have, the load aside."""
        return {
            "incarnation": self.incarnation,
            "pid": os.getpid(),
            "fingerprint": self.engine.fingerprint,
            "page_size": self.engine.config.page_size,
            "device": str(self.engine.device),
            "dtype": self.engine.dtype,
            "cost": codec.write_cost(self.cost) if self.cost else None,
            "draining": self.draining.is_set(),
            "metrics_port": self.shell.metrics_port,
            "warm": self.metrics.value("forward_seconds_count", kind=self.role) > 0,
        }

    def note_load(self) -> None:
        """What is held, to the metrics."""
        held = self.engine.held
        self.metrics.note_load(held.sequences, held.pages_held, held.pages_total)

    def refused(self, reason: RefusalReason) -> None:
        """Counts a refusal."""
        self.metrics.refusals.labels(reason=reason.name.lower()).inc()


class Services(NamedTuple):
    """What a room makes of a worker: its servicers, and what ends behind the last call."""

    servicers: Sequence[Servicer]
    close: Callable[[], Awaitable[None]]


class WorkerProcess(ShellProcess, Generic[E]):
    """A serving worker."""

    last_s = 0.2

    def __init__(self, shell: Shell, worker: Worker[E], services: Services) -> None:
        super().__init__(shell)
        self.worker, self._services = worker, services

    @property
    def engine(self) -> E:
        return self.worker.engine

    def _leave(self, grace_s: float) -> None:
        for each in self.worker.threads:
            each.on_health = lambda healthy: None  # it serves no more, however well it is
        self.worker.draining.begin(grace_s)

    async def _empty(self, grace_s: float) -> None:
        # Sessions stay open as long as their coordinator lives; what is waited for is the sequences
        # in them.
        await emptied(self.worker.device, lambda: self.engine.held.sequences, grace_s)

    async def _close(self, grace_s: float) -> None:
        await self._services.close()
        for each in self.worker.threads:
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
) -> WorkerProcess[E]:
    """Serves what `load` gives, which runs on the thread that computes: it may take minutes.
    passes: whether that is another one than the device's."""
    keep_freed_memory()
    wait_briefly()
    shell = Shell(role, config, lambda: model or config.engine)
    device = DeviceWorker(name)
    computes = DeviceWorker(f"{name}-passes") if passes else None
    threads, made = [each for each in (computes, device) if each is not None], None
    try:
        engine, cost = await (computes or device).run(load)
        worker = Worker(role, engine, device, shell, cost, computes)
        made = services(worker)
        shell.metrics.pages_total.set(engine.held.pages_total)
        await shell.listen(made.servicers)
        await shell.server.set_serving(True)
        for each in threads:
            each.on_health = shell.server.say_serving
    except BaseException:
        if made is not None:
            await made.close()
        for each in threads:
            each.close()
        await shell.abandon()
        raise
    log.info(
        f"{role}.serving",
        name=name,
        endpoint=shell.endpoint,
        model=getattr(config, "drafter", "") or model or config.engine,
        device=str(engine.device),
        dtype=engine.dtype,
        pages=engine.held.pages_total,
        metrics_port=shell.metrics_port,
        projection=engine.projection or None,
    )
    return WorkerProcess(shell, worker, made)


def check_worker(role: str, config: Any) -> None:
    """Refuses an engine that is none, and numbers out of their bounds, by name."""
    check_settings(config, role)
    if config.engine == "synthetic" and not config.synthetic:
        raise ConfigError(f"{role}.synthetic: required with the synthetic engine and not given")
    if config.engine == "real" and config.synthetic:
        raise ConfigError(f"{role}.synthetic: of use with `engine: synthetic` only")


async def emptied(device: DeviceWorker, held: Callable[[], int], longest_s: float) -> None:
    """Until nothing is held any more, or for so long.

    The device thread is who looks, after whatever it was asked before: a sequence may have been let
    in that it has not taken up yet.
    """
    with contextlib.suppress(TimeoutError, Unavailable):
        async with asyncio.timeout(longest_s):
            while True:
                with contextlib.suppress(Overloaded):  # so many jobs are something to wait for
                    if not await device.run(held):
                        return
                await asyncio.sleep(_LOOK_S)
