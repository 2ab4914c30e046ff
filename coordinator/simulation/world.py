"""What simulated workers share: the constants of what lies between, the sequences, replies that take their time."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from coordinator.cost_curve import CostCurve
from coordinator.ports import Lost, Sink
from coordinator.simulation.device import Device
from dspark.synthetic.law import SyntheticLaw
from dspark.synthetic.steps import StepTable
from dspark.types import Cursor


@dataclass(frozen=True, slots=True)
class Hops:
    """What lies between a command and its device and back, in seconds: the constants of the simulator."""

    hop_s: float = 150e-6  # one way: writing, the wire, reading, two threads
    sequence_s: float = 5e-6  # one way, more for each sequence of the message
    round_s: float = 100e-6  # the coordinator's own processor time for one reply: scheduling, settling
    round_sequence_s: float = 40e-6  # more for each sequence: its commit and its client's message

    def way(self, sequences: int) -> float:
        return self.hop_s + sequences * self.sequence_s

    def settling(self, sequences: int) -> float:
        return self.round_s + sequences * self.round_sequence_s

    def scaled(self, factor: float) -> Hops:
        return Hops(*(factor * value for value in (self.hop_s, self.sequence_s, self.round_s, self.round_sequence_s)))


@dataclass(slots=True)
class Held:
    """What both workers know of a sequence."""

    key: int
    domain: int


class TakesRows(Protocol):
    """A drafter, as a verifier sees it."""

    def take(self, cursor: Cursor, start: int, stop: int) -> None: ...


class World:
    """What the workers of one simulation share."""

    def __init__(self, law: SyntheticLaw, hops: Hops, prefill_chunk: int) -> None:
        self.law, self.hops, self.prefill_chunk = law, hops, prefill_chunk
        self.loop = asyncio.get_running_loop()
        self.sequences: dict[int, Held] = {}
        self.drafters: dict[Sink, TakesRows] = {}

    def reply(self, future: Future[Any], value: Any, sequences: int, processor: Device | None = None) -> None:
        """Sends a reply on its way; it then waits for the coordinator's processor, if it has to be settled there."""

        def arrived() -> None:
            if processor is not None:
                processor.submit(lambda: self.hops.settling(sequences), give, urgent=True)
            else:
                give(0.0)

        def give(_: float) -> None:
            if not future.done():
                future.set_result(value)

        self.loop.call_later(self.hops.way(sequences), arrived)


class SimulatedWorker:
    """A device, and replies that fail when the worker is let go."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.device = Device()
        self.on_close: Callable[[], object] = lambda: None
        self._open: set[Future[Any]] = set()
        self._closed = ""

    def _future(self) -> Future[Any]:
        future: Future[Any] = self.world.loop.create_future()
        if self._closed:
            future.set_exception(Lost(self._closed))
            return future
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        return future

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
