"""What simulated workers share: the constants of hops, devices with simulated pass times, counted
pages.

A message costs processor time in two processes, its worker's and its coordinator's, and each of
these does one thing at a time. So lanes of one coordinator, and lanes that share a drafter, wait
for each other there; only the network between them has no queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from coordinator.planning.cost import CostCurve
from coordinator.simulation.pair import SimulatedPair
from dspark.synthetic.spec import SyntheticSpec
from dspark.synthetic.steps import StepTable


class Pages:
    """Implements `KVCache`: pages are handed out as sequences grow."""

    def __init__(
        self, total: int, page_size: int, freed: Callable[[tuple[int, int]], object]
    ) -> None:
        """total: 0 for no limit. freed: called with each (sequence, epoch) that is freed."""
        self.total, self.page_size, self._freed = total, page_size, freed
        self.held: dict[tuple[int, int], int] = {}
        self._taken = 0

    def grow(self, sequence: int, epoch: int, committed_len: int, slots: int) -> int | None:
        held = self.held.get((sequence, epoch), 0)
        left = held + self.left
        room = left * self.page_size - committed_len if self.total else slots
        if room < 0:
            return None
        given = min(slots, room)
        wanted = max(-(-(committed_len + given) // self.page_size), held)
        self.held[sequence, epoch] = wanted
        self._taken += wanted - held
        return given

    def free(self, sequence: int, epoch: int) -> None:
        self._taken -= self.held.pop((sequence, epoch), 0)
        self._freed((sequence, epoch))

    @property
    def left(self) -> int:
        return self.total - self._taken


Work = Callable[[], float]  # begins a pass and returns its seconds
Done = Callable[[float], None]  # called with those seconds when they are over


class Cores:
    """Cores of a machine that processes share: so many work at a time, others wait in order."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, then: Callable[[], None]) -> None:
        """Calls `then` with a core in hand, now or later."""
        if self._free:
            self._free -= 1
            then()
        else:
            self._waiting.append(then)

    def give(self) -> None:
        if self._waiting:
            self._waiting.popleft()()
        else:
            self._free += 1


class Device:
    """Runs one pass at a time, to its end. Waiting passes are taken in order of arrival, urgent
    ones before ordinary ones. With `cores` it is a process that needs one of them for every pass.
    Counts the seconds that it was busy."""

    def __init__(self, cores: Cores | None = None) -> None:
        self.busy_s = 0.0
        self._cores = cores
        self._loop = asyncio.get_running_loop()
        # urgent ones, ordinary ones
        self._waiting = [deque[tuple[Work, Done]]() for _ in range(2)]
        self._free_at = 0.0
        self._running = False

    @property
    def busy_until_now_s(self) -> float:
        """Busy seconds so far, without what is left of a running pass."""
        return self.busy_s - max(self._free_at - self._loop.time(), 0.0)

    def submit(self, work: Work, done: Done, *, urgent: bool) -> None:
        """Queues a pass; `work` is called when the pass begins."""
        self._waiting[0 if urgent else 1].append((work, done))
        if not self._running:
            self._next()

    def _next(self) -> None:
        self._running = any(self._waiting)
        if self._running and self._cores is not None:
            self._cores.take(self._begin)
        elif self._running:
            self._begin()

    def _begin(self) -> None:
        work, done = next(queue for queue in self._waiting if queue).popleft()
        seconds = work()
        self.busy_s += seconds
        self._free_at = self._loop.time() + seconds
        self._loop.call_later(seconds, self._over, done, seconds)

    def _over(self, done: Done, seconds: float) -> None:
        if self._cores is not None:
            self._cores.give()
        done(seconds)
        self._next()


@dataclass(frozen=True, slots=True)
class HopDelays:
    """Seconds between a command and its device and back: the constants of the simulator.

    A reply is a block of drafts or a verdict; `round_` is what one takes of its coordinator's
    processor (scheduling, settling, commits, clients, the next command), `worker_` what a command
    and its reply take of their worker's. As much again follows a reply, and nothing waits for it
    (rows, clients' streams).
    """

    hop_s: float = 150e-6  # one way: the network, and waking the receiver
    worker_s: float = 600e-6
    worker_sequence_s: float = 40e-6  # more for each sequence
    round_s: float = 600e-6
    round_sequence_s: float = 40e-6  # more for each sequence

    def serving(self, sequences: int) -> float:
        """Seconds of a worker's processor for one command and its reply."""
        return self.worker_s + sequences * self.worker_sequence_s

    def settling(self, sequences: int) -> float:
        """Seconds of the coordinator's processor for one reply."""
        return self.round_s + sequences * self.round_sequence_s


@dataclass(frozen=True, slots=True)
class KVShape:
    """A verifier's page pool. pages: 0 for no limit; prefill_chunk: prompt tokens of a pass without
    rounds."""

    pages: int
    page_size: int
    prefill_chunk: int = 256


class World:
    """What the workers of one simulation share."""

    def __init__(
        self, pair: SimulatedPair, spec: SyntheticSpec, hops: HopDelays, kv: KVShape, cores: int = 0
    ) -> None:
        self.pair, self.spec, self.hops, self.kv = pair, spec, hops, kv
        self.cores = Cores(cores) if cores else None  # None: every process has one of its own
        self.loop = asyncio.get_running_loop()

    def hop(self, then: Callable[..., object], *words: object) -> None:
        """Calls `then` when a message sent now arrives."""
        self.loop.call_later(self.hops.hop_s, then, *words)

    def trail(self, processor: Device, seconds: float) -> None:
        """Queues work of a process that nothing waits for."""
        if seconds:
            processor.submit(lambda: seconds, lambda _: None, urgent=False)


class SimulatedWorker:
    """A device, and the processor of its host."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.device = Device()
        self.host = Device(world.cores)
        self.closed = False  # takes no more work

    def command(self, sequences: int, then: Callable[[], object]) -> None:
        """Sends a command; `then` is called when the host has read it, in half of the time that
        `HopDelays.serving` gives. The other half is for the reply."""
        self.world.hop(self.serve, sequences, then)

    def serve(self, sequences: int, then: Callable[[], object]) -> None:
        """Half of a command's time on the host, then calls `then`."""
        seconds = 0.5 * self.world.hops.serving(sequences)

        def served(_: float) -> None:
            then()
            self.world.trail(self.host, seconds)

        self.host.submit(lambda: seconds, served, urgent=True)


def curve_of(table: StepTable) -> CostCurve:
    """The cost curve that a worker with these step times would announce."""
    sizes, contexts, seconds = table.announced()
    return CostCurve(sizes, contexts, [value for row in seconds for value in row])
