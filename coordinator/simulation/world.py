"""What simulated workers share: the constants of what lies between, and processors that take their time.

A message costs processor time in two processes, its worker's and its coordinator's, and each of these does one thing at
a time. So lanes of one coordinator, and lanes that share a drafter, wait for each other there; only the way between is
free of queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from coordinator.planning.cost import CostCurve
from coordinator.simulation.device import Cores, Device
from coordinator.simulation.pair import SimulatedPair
from dspark.synthetic.spec import SyntheticSpec
from dspark.synthetic.steps import StepTable


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


@dataclass(frozen=True, slots=True)
class KVShape:
    """Of a verifier's pool. pages: 0 for no limit; prefill_chunk: prompt tokens of a pass without rounds."""

    pages: int = 0
    page_size: int = 16
    prefill_chunk: int = 256


class World:
    """What the workers of one simulation share."""

    def __init__(self, pair: SimulatedPair, spec: SyntheticSpec, hops: Hops, kv: KVShape, cores: int = 0) -> None:
        self.pair, self.spec, self.hops, self.kv = pair, spec, hops, kv
        self.cores = Cores(cores) if cores else None  # None: every process has one of its own
        self.loop = asyncio.get_running_loop()

    def trail(self, processor: Device, seconds: float) -> None:
        """Work that a process does when nobody waits for it."""
        if self.hops.trailing:
            processor.submit(lambda: self.hops.trailing * seconds, lambda _: None, urgent=False)


class SimulatedWorker:
    """A device, and the processor of its host."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.device = Device()
        self.host = Device(world.cores)
        self._closed = ""

    @property
    def closed(self) -> bool:
        return bool(self._closed)

    def command(self, sequences: int, then: Callable[[], object]) -> None:
        """Sends a command on its way; `then` follows when the host has read it. Half of its time is for the reply."""

        def arrived() -> None:
            self.serve(sequences, then)

        self.world.loop.call_later(self.world.hops.hop_s, arrived)

    def serve(self, sequences: int, then: Callable[[], object]) -> None:
        """Half a command on the host, and what follows."""
        seconds = 0.5 * self.world.hops.serving(sequences)

        def served(_: float) -> None:
            then()
            self.world.trail(self.host, seconds)

        self.host.submit(lambda: seconds, served, urgent=True)

    def close(self, why: str) -> None:
        """Nothing is asked of it any more."""
        self._closed = self._closed or why


def curve_of(table: StepTable) -> CostCurve:
    """What the worker would announce."""
    sizes, contexts, seconds = table.announced()
    return CostCurve(sizes, contexts, [value for row in seconds for value in row])
