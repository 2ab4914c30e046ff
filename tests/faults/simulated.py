"""A whole cell in one event loop and in simulated time: the real processes, an in-memory network,
faults at will.

    async def story(cell: SimulatedCell) -> None:
        asking = asyncio.create_task(cell.ask([5, 9, 17], max_tokens=40))
        await cell.after(0.05)
        cell.kill("verify/0")
        answer = await asking
    simulate(story, verifiers=2)

What runs is what `dspark serve` runs: `start` of coordinator, verifiers and drafters, their
services, engines and codecs, and the Python client. Replaced are gRPC's sockets (`memory_grpc`),
the device's thread (`device`), clocks and `secrets.randbits`; so a story with a seed is the same
story every time, and ten simulated minutes take as long as what is computed in them.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar
from unittest import mock

from coordinator import process as coordinator_process
from coordinator.config import CoordinatorConfig, FrontendConfig
from coordinator.frontend import process as frontend_process
from draft_service import process as draft_process
from draft_service.config import DraftConfig
from dspark.client import AsyncClient
from dspark.runtime import worker
from tests.faults.device import Seconds, SimulatedDevice
from tests.faults.memory_grpc import MemoryChannel, MemoryDrafterStream, MemoryServer
from tests.faults.network import Network
from tests.faults.pair import DRAFTER, FLAT, TARGET
from tests.faults.plan import Plan
from tests.faults.simulation import Simulation
from tests.faults.streams import Stream
from tests.faults.tape import Tape
from tests.waiting import until
from verify_service import drafters
from verify_service import process as verify_process
from verify_service.config import VerifyConfig

STARTS: dict[str, tuple[Any, Any]] = {
    "verify": (verify_process.start, VerifyConfig),
    "draft": (draft_process.start, DraftConfig),
    "coordinator": (coordinator_process.start, CoordinatorConfig),
    "frontend": (frontend_process.start, FrontendConfig),
}
LONGEST_S = 3600.0  # simulated seconds that a story may take

T = TypeVar("T")


class SimulatedCell:
    """Names are those of processes: "coordinator/0", "verify/0", "draft/1", "frontend/0"."""

    def __init__(
        self,
        *,
        verifiers: int = 1,
        drafters: int = 1,
        frontends: int = 0,
        synthetic: bool = False,
        coordinator: Mapping[str, Any] | None = None,
        verify: Mapping[str, Any] | None = None,
        draft: Mapping[str, Any] | None = None,
        plan: Plan | None = None,
        watch_s: float = 4.0,
        seconds: Seconds | None = None,
    ) -> None:
        self.network = network = Network(plan, watch_s=watch_s)
        self.kill, self.freeze, self.thaw = network.kill, network.freeze, network.thaw
        self.tape = None if synthetic else Tape()
        self.seconds = seconds or {}
        self.processes: dict[str, Any] = {}  # what each `start` returned
        self._counts = {"verify": verifiers, "draft": drafters}
        self._frontends = frontends
        given: dict[str, dict[str, Any]] = {
            "verify": {"measure_cost": synthetic, "kv_tokens": 8192},
            "draft": {"measure_cost": synthetic, "context_tokens": 8192},
        }
        if synthetic:
            for role, more in given.items():
                more.update(engine="synthetic", synthetic=str(FLAT), max_sequences=64)
                more["kv_tokens" if role == "verify" else "context_tokens"] = 1 << 16
        else:
            given["verify"].update(target=str(TARGET), drafter=str(DRAFTER))
            given["draft"].update(drafter=str(DRAFTER))
        given["verify"].update(verify or {})
        given["draft"].update(draft or {})
        given["coordinator"] = dict(coordinator or {})
        self._given = given
        self._binds: dict[str, str] = {}

    @property
    def endpoint(self) -> str:
        """Of the coordinator."""
        return self._binds["coordinator/0"]

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def start(self) -> None:
        """Every process, workers first, until the coordinator is connected to all."""
        for role, count in self._counts.items():
            for index in range(count):
                await self.begin(f"{role}/{index}")
        await self.begin("coordinator/0")
        await self.connected()
        for index in range(self._frontends):
            await self.begin(f"frontend/{index}")

    async def connected(self, workers: int = 0, within_s: float = 60.0) -> None:
        """Until the coordinator is connected to so many workers, to all of the beginning if 0."""
        workers = workers or sum(self._counts.values())
        membership = self.processes["coordinator/0"].cell.membership
        await self.until(
            lambda: sum(each.port is not None for each in membership.workers) >= workers,
            within_s,
        )

    async def begin(self, name: str) -> Any:
        """Starts a process, at its old endpoint if it had one."""
        role = name.partition("/")[0]
        start, config = STARTS[role]
        # a server on a thread is not simulated, and so are no metrics served
        more: dict[str, Any] = {"metrics_port": None, "bind": self._binds.get(name, "127.0.0.1:0")}
        if role == "coordinator":
            more["warm_up_s"] = 0.0
            for pool in self._counts:
                there = (at for who, at in self._binds.items() if who.startswith(f"{pool}/"))
                more[pool] = tuple(there)
        elif role == "frontend":
            more["coordinator"] = self.endpoint
        elif role == "draft":
            more["rounds_port"] = None
        work = start(config(**more | self._given.get(role, {})), name=name)
        process = await self.network.within(self.network.begin(name), work)
        self.processes[name], self._binds[name] = process, process.endpoint
        if self.tape is not None and role == "verify":
            self.tape.verifier(process.engine)
        if self.tape is not None and role == "draft":
            self.tape.drafter(name, process.engine)
        return process

    def give(self, role: str, **more: Any) -> None:
        """What processes of this role are told from their next start on."""
        self._given[role].update(more)

    async def terminate(self, name: str, grace_s: float = 10.0) -> None:
        """SIGTERM, until the process has ended."""
        await self.network.within(self.network.nodes[name], self.processes[name].stop(grace_s))
        self.network.kill(name)

    async def restart(self, name: str) -> Any:
        if self.network.nodes[name].alive:
            self.kill(name)
        return await self.begin(name)

    async def ask(
        self,
        prompt: list[int],
        *,
        at: str = "coordinator/0",
        token: str | None = None,
        into: Stream | None = None,
        **options: Any,
    ) -> Stream:
        """One request by the Python client to a process; greedy and to its full length unless told
        otherwise. `into` grows while it runs."""
        answer = into or Stream()
        answer.prompt = list(prompt)
        seeded = {} if "rule" in options else {"seed": 7}
        answer.options = {"timeout": 600.0, "temperature": 0.0, **seeded, **options}
        async with AsyncClient(self._binds[at], token=token) as client:
            await answer.run(client)
        return answer

    async def after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def until(
        self, condition: Callable[[], bool], within_s: float = 30.0, each_s: float = 0.001
    ) -> None:
        """Looks every so often; raises when it does not come true in simulated time."""
        await until(condition, within_s, each_s)

    def held(self, name: str) -> int:
        return int(self.processes[name].engine.held.sequences)

    def holder(self, role: str = "verify") -> str:
        """The living worker that holds most sequences."""
        names = [
            name
            for name in self.processes
            if name.startswith(f"{role}/") and self.network.nodes[name].alive
        ]
        return max(names, key=self.held)

    def left_over(self) -> dict[str, int]:
        """What living processes still hold for requests: empty when everything was freed."""
        held = {
            name: self.held(name)
            for name in self.processes
            if name[0] in "vd" and self.network.nodes[name].alive
        }
        admission = self.processes["coordinator/0"].cell.admission
        held["coordinator/0"] = admission.running + admission.queued
        return {name: count for name, count in held.items() if count}

    def metric(self, name: str, process: str = "coordinator/0", **labels: str) -> float:
        """A counter of a process, summed over labels that are not given; 0 if it never counted."""
        total = 0.0
        for family in self.processes[process].metrics.registry.collect():
            for sample in family.samples:
                if sample.name == f"dspark_{name}" and labels.items() <= sample.labels.items():
                    total += sample.value
        return total


def simulate(
    story: Callable[[SimulatedCell], Awaitable[T]], *, seed: int = 0, **settings: Any
) -> T:
    """What the story returns, told in a cell of these settings of `SimulatedCell`."""

    async def main() -> T:
        cell = SimulatedCell(**settings)
        with in_memory(cell):
            await cell.start()
            return await asyncio.wait_for(story(cell), LONGEST_S)

    with Simulation(seed) as simulation:
        return simulation.run(main())


@contextlib.contextmanager
def in_memory(cell: SimulatedCell) -> Iterator[None]:
    """Servers, channels and devices of this story are those of its network."""
    network = cell.network

    def device(name: str, **_: Any) -> SimulatedDevice:
        return SimulatedDevice(network, cell.seconds)

    channel, server = partial(MemoryChannel, network), partial(MemoryServer, network)
    drafter_stream = partial(MemoryDrafterStream, network)
    with contextlib.ExitStack() as stack:
        for name, made in (("insecure_channel", channel), ("server", server)):
            stack.enter_context(mock.patch(f"grpc.aio.{name}", made))
        stack.enter_context(mock.patch.object(worker, "DeviceWorker", device))
        stack.enter_context(mock.patch.object(drafters, "DrafterStream", drafter_stream))
        yield
