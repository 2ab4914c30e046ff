"""What simulated workers share: the constants of what lies between, the sequences, replies that take their time.

A message costs processor time in two processes, its worker's and its coordinator's, and each of these does one thing at
a time. So lanes of one coordinator, and lanes that share a drafter, wait for each other there; only the way between is
free of queues.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from coordinator.lanes.ports import Lost, Sink
from coordinator.scheduling.cost_curve import CostCurve
from coordinator.simulation.device import Cores, Device
from dspark.synthetic.law import SyntheticLaw
from dspark.synthetic.steps import StepTable
from dspark.types import Cursor


@dataclass(frozen=True, slots=True)
class Hops:
    """What lies between a command and its device and back, in seconds: the constants of the simulator.

    A reply is a block of drafts or a verdict; `round_` is what one takes of its coordinator's processor (scheduling,
    settling, commits, clients, the next command), `worker_` what a command and its reply take of their worker's.
    """

    hop_s: float = 150e-6  # one way: the wire, and waking who waits
    worker_s: float = 600e-6
    worker_sequence_s: float = 40e-6  # more for each sequence
    round_s: float = 600e-6
    round_sequence_s: float = 40e-6  # more for each sequence
    trailing: float = 1.0  # what follows a reply and nobody waits for (rows, clients' streams), as a share of the above

    def serving(self, sequences: int) -> float:
        """A worker's processor, for one command and its reply."""
        return self.worker_s + sequences * self.worker_sequence_s

    def settling(self, sequences: int) -> float:
        """The coordinator's, for one reply."""
        return self.round_s + sequences * self.round_sequence_s

    def scaled(self, factor: float) -> Hops:
        return replace(self, **{name: factor * value for name, value in asdict(self).items() if name != "trailing"})


@dataclass(slots=True)
class Held:
    """What both workers know of a sequence. processor: of its coordinator, which settles what is said of it."""

    key: int
    domain: int
    processor: Device


class TakesRows(Protocol):
    """A drafter, as a verifier sees it."""

    def take(self, cursor: Cursor, start: int, stop: int) -> None: ...


class World:
    """What the workers of one simulation share."""

    def __init__(self, law: SyntheticLaw, hops: Hops, prefill_chunk: int, cores: int = 0) -> None:
        self.law, self.hops, self.prefill_chunk = law, hops, prefill_chunk
        self.cores = Cores(cores) if cores else None  # None: every process has one of its own
        self.loop = asyncio.get_running_loop()
        self.sequences: dict[int, Held] = {}
        self.drafters: dict[Sink, TakesRows] = {}

    def reply(self, future: Future[Any], value: Any, sequences: int = 0, processor: Device | None = None) -> None:
        """Sends a reply on its way; it then waits for the coordinator's processor, if it has to be settled there."""

        def arrived() -> None:
            if processor is not None:
                processor.submit(lambda: self.hops.settling(sequences), give, urgent=True)
            else:
                give(0.0)

        def give(_: float) -> None:
            if not future.done():
                future.set_result(value)
            if processor is not None:
                self.trail(processor, self.hops.settling(sequences))

        self.loop.call_later(self.hops.hop_s, arrived)

    def trail(self, processor: Device, seconds: float) -> None:
        """Work that a process does when nobody waits for it."""
        if self.hops.trailing:
            processor.submit(lambda: self.hops.trailing * seconds, lambda _: None, urgent=False)


class SimulatedWorker:
    """A device, the processor of its host, and replies that fail when the worker is let go."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.device = Device()
        self.host = Device(world.cores)
        self.on_close: Callable[[], object] = lambda: None
        self._open: set[Future[Any]] = set()
        self._closed = ""

    @property
    def closed(self) -> bool:
        return bool(self._closed)

    def _future(self) -> Future[Any]:
        future: Future[Any] = self.world.loop.create_future()
        if self._closed:
            future.set_exception(Lost(self._closed))
            return future
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        return future

    def command(self, sequences: int, then: Callable[[], object], late_s: float = 0.0) -> None:
        """Sends a command on its way; `then` follows when the host has read it. Half of its time is for the reply."""

        def arrived() -> None:
            self.serve(sequences, then)

        self.world.loop.call_later(self.world.hops.hop_s + late_s, arrived)

    def serve(self, sequences: int, then: Callable[[], object]) -> None:
        """Half a command on the host, and what follows."""
        seconds = 0.5 * self.world.hops.serving(sequences)

        def served(_: float) -> None:
            then()
            self.world.trail(self.host, seconds)

        self.host.submit(lambda: seconds, served, urgent=True)

    def close(self, why: str) -> None:
        """Nothing is asked of it any more, and what was asked fails."""
        if self._closed:
            return
        self._closed = why
        for future in list(self._open):
            future.set_exception(Lost(why))
            future.exception()
        self.on_close()


def curve_of(table: StepTable) -> CostCurve:
    """What the worker would announce."""
    sizes, contexts, seconds = table.announced()
    return CostCurve(sizes, contexts, [value for row in seconds for value in row])
