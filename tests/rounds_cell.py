"""A cell in simulated time: admission, lanes, planner and the very `RoundLoop`s of their verifiers,
in one process.

The toy target of `fakes` says what follows; its drafter is wrong where the position is a multiple
of `wrong_every`. Every wait costs nothing, and a run is a function of what the story does.
"""

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from coordinator.answers.answer import Answer, RequestStats
from coordinator.answers.output_queue import OutputQueue
from coordinator.config import CoordinatorConfig
from coordinator.lanes.lane import Lane
from coordinator.lanes.lane_context import LaneContext
from coordinator.lanes.request_state import RequestState
from coordinator.lanes.request_state import SequenceLife as Life
from coordinator.queue.scheduler import Scheduler
from coordinator.requests.request import Request
from coordinator.simulation.drafter import SimulatedDrafter
from coordinator.simulation.pair import SimulatedBlock, SimulatedContext, SimulatedPair
from coordinator.simulation.verifier import SimulatedVerifier
from coordinator.simulation.world import Device, HopDelays, KVShape, World
from dspark.rounds.control import Down, Listener, PassReport, Up
from dspark.rounds.events import RoundReport
from dspark.rounds.orders import OrderTimeouts
from dspark.rounds.policy import parse_policy
from dspark.runtime.telemetry import Metrics
from dspark.synthetic.spec import SyntheticSpec, read_spec
from dspark.types import SamplingParams
from tests.fakes import VOCAB, after, answer_of, read
from tests.waiting import until

D = TypeVar("D", bound=Down)
U = TypeVar("U", bound=Up)
SLOTS = 4


def costs(draft_ms: float = 1) -> SyntheticSpec:
    return read_spec(
        {
            "verify": {"tokens": [1, 101], "ms": [10, 20], "prefill_ms": 0.05},
            "draft": {"sequences": [1], "ms": [draft_ms]},
            "domains": {"all": {"accept": [0.9, 0.8, 0.8, 0.7]}},
            "vocabulary": VOCAB,
            "context_length": 4096,
        }
    )


class ToyPair:
    """Arithmetic: what `fakes` says, too."""

    def __init__(self, wrong_every: int = 5) -> None:
        self.wrong_every = wrong_every

    def admitted(self, held: SimulatedContext) -> None:
        pass

    def draft(self, asked: Sequence[tuple[SimulatedContext, int]]) -> list[SimulatedBlock]:
        return [SimulatedBlock(self._block(held, slots), (0.9,) * slots) for held, slots in asked]

    def _block(self, held: SimulatedContext, slots: int) -> list[int]:
        ids: list[int] = []
        token, position = held.tokens[-1], len(held.tokens) - 1
        for _ in range(slots):
            token, position = after(token, position), position + 1
            if position % self.wrong_every == 0:
                token = (token + 1) % VOCAB
            ids.append(token)
        return ids

    def judge(
        self, asked: Sequence[tuple[SimulatedContext, Sequence[int]]]
    ) -> list[tuple[int, ...]]:
        drawn = []
        for held, prefix in asked:
            said = answer_of(held.tokens, len(prefix) + 1)
            wrong = (slot for slot, token in enumerate(prefix) if token != said[slot])
            drawn.append(tuple(said[: next(wrong, len(prefix)) + 1]))
        return drawn


def with_rows(each: PassReport, rows: Iterable[RoundReport]) -> PassReport:
    return each._replace(report=each.report._replace(rounds=[*rows]))


class Tampered:
    """A port to a verifier that says something else, and a tape of what was told both ways."""

    def __init__(self, port: SimulatedVerifier) -> None:
        self.port = port
        self.tampers: Callable[[Sequence[Up]], Sequence[Up]] = lambda news: news
        self.holding: Callable[[Up], bool] = lambda each: False
        self.held: list[Up] = []
        self.told: list[Down] = []
        self.said: list[Up] = []
        self.closed_because = ""
        self.on_lost: Callable[[], None] = lambda: None
        self._listener: Listener | None = None

    def listen(self, listener: Listener) -> None:
        self._listener = listener
        self.port.listen(self)

    def tell(self, orders: Sequence[Down]) -> None:
        self.told.extend(orders)
        self.port.tell(orders)

    def close(self, why: str) -> None:
        self.closed_because = self.closed_because or why
        self.port.close(why)

    def heard(self, news: Sequence[Up]) -> None:
        told = self.tampers(news)
        self.held.extend(filter(self.holding, told))
        said = [each for each in told if not self.holding(each)]
        self.said.extend(said)
        if self._listener is not None and said:
            self._listener.heard(said)

    def in_reports(self, change: Callable[[PassReport], Sequence[Up]]) -> None:
        """The verifier says this in place of each report from now on."""
        self.tampers = lambda news: [
            told
            for each in news
            for told in (change(each) if isinstance(each, PassReport) else (each,))
        ]

    def in_rows(self, change: Callable[[RoundReport], RoundReport]) -> None:
        """The verifier says this in place of each row of a report from now on."""
        self.in_reports(lambda each: [with_rows(each, map(change, each.report.rounds))])

    def honest(self) -> None:
        """The verifier is heard as it speaks from now on."""
        self.tampers = lambda news: news

    def orders(self, kind: type[D]) -> list[D]:
        return [each for each in self.told if isinstance(each, kind)]

    def news(self, kind: type[U]) -> list[U]:
        return [each for each in self.said if isinstance(each, kind)]

    def hold(self, what: Callable[[Up], bool] = lambda each: True) -> None:
        """News of this kind wait from now on."""
        self.holding = what

    def let_go(self) -> None:
        """What waits comes, and whatever follows."""
        self.holding = lambda each: False
        held, self.held = self.held, []
        if held:
            self.heard(held)

    def lost(self, why: str) -> None:
        if self._listener is not None:
            self._listener.lost(why)
        self.on_lost()


class RoundsCell:
    """Make it inside a virtual loop, see `tests/unit/coordinator/conftest.py`."""

    def __init__(
        self,
        *,
        drafters: int = 1,
        verifiers: int = 1,
        pages: int = 0,
        sink: int = 4096,
        pair: SimulatedPair | None = None,
        write: Callable[[], None] = lambda: None,
        draft_ms: float = 1,
        **settings: Any,
    ) -> None:
        """settings: of the coordinator."""
        self.clock = asyncio.get_running_loop()
        self.metrics = Metrics()
        self.pair = pair or ToyPair()
        config = CoordinatorConfig(**settings)
        self.admission = Scheduler(config, self.clock, self.metrics)
        self.world = World(
            self.pair, costs(draft_ms), HopDelays(1e-4, 0.0, 0.0, 0.0, 0.0), KVShape(pages, 4)
        )
        shared = LaneContext(self.clock, self.metrics, config, write)
        self.monitor, self.explain = shared.monitor, shared.explain
        self._shared, self.load, self._sink = shared, shared.load, sink
        self._waits = OrderTimeouts(deadline_s=0.05, patience_s=0.5, inline_rows=6)
        self._numbers, self._named = itertools.count(1), itertools.count()
        self.drafters: list[SimulatedDrafter] = []
        self.lanes: list[Lane] = []
        self.ports: list[Tampered] = []
        for _ in range(drafters):
            self.add_drafter()
        for _ in range(verifiers):
            self.add_verifier()

    @property
    def lane(self) -> Lane:
        return self.lanes[0]

    @property
    def port(self) -> Tampered:
        return self.ports[0]

    def new_verifier(self, name: str) -> SimulatedVerifier:
        return SimulatedVerifier(self.world, name, Device(), self.drafters, self._waits)

    def new_drafter(self, name: str, incarnation: int) -> SimulatedDrafter:
        return SimulatedDrafter(self.world, name, incarnation)

    def add_verifier(self, name: str = "", **says: Any) -> Lane:
        """What membership does when a verifier comes, and when it is lost. says: facts that it
        announces, in place of its own."""
        rounds = self.new_verifier(name or f"verify/{next(self._named)}")
        port = Tampered(rounds)

        def lost() -> None:
            at = self.lanes.index(lane)
            del self.lanes[at], self.ports[at]
            self.admission.lane_left(lane)

        facts = dataclasses.replace(rounds.facts, **says)
        lane, port.on_lost = Lane(facts, port, self.admission, self._shared), lost
        self.lanes.append(lane)
        self.ports.append(port)
        for drafter in self.drafters:
            lane.drafter_joined(drafter)
        self.admission.lane_joined(lane)
        return lane

    def add_drafter(self) -> SimulatedDrafter:
        number = next(self._named)
        drafter = self.new_drafter(f"draft/{number}", number + 1)
        self.drafters.append(drafter)
        for lane in self.lanes:
            lane.drafter_joined(drafter)
        return drafter

    def lose_verifier(self, at: int = 0) -> None:
        """As a killed process: what it knew that was not reported is gone."""
        self.ports[at].port.close("lost")

    def replace_verifier(self) -> None:
        """As one that is killed and started again."""
        self.lose_verifier()
        self.add_verifier()

    def lose_drafter(self, drafter: SimulatedDrafter) -> None:
        """As a killed process: both its verifiers and the coordinator see it."""
        self.drafters.remove(drafter)
        drafter.lose()
        self.part_from(drafter)

    def part_from(self, drafter: SimulatedDrafter) -> None:
        """The coordinator loses it, its verifiers do not."""
        for lane in self.lanes:
            lane.drafter_left(drafter)
        self.load.pop(drafter, None)

    def ask(self, *asked: Any, **more: Any) -> RequestState:
        return self.answers(*asked, **more)[0]

    def answers(
        self,
        prompt: Sequence[int] = (5, 6),
        max_tokens: int = 8,
        policy: str = "adaptive",
        params: SamplingParams | None = None,
        note_epoch: Callable[[int, str], object] = lambda epoch, target: None,
        name: str = "",
        **more: Any,
    ) -> list[RequestState]:
        first = next(self._numbers)
        request = Request(
            name or f"r{first}",
            tuple(prompt),
            params or SamplingParams(temperature=0.0),
            max_tokens,
            parse_policy(policy),
            **more,
        )
        states, sink = [], OutputQueue(self._sink * request.choices)
        for index in range(request.choices):
            answer = Answer(
                request.prompt, max_tokens=max_tokens, stop_ids=request.stop_ids, index=index
            )
            life = Life(next(self._numbers) if index else first)
            stats = RequestStats(self.clock.time())
            states.append(RequestState(request, life, answer, stats, sink, note_epoch))
        self.admission.check(request)
        self.admission.submit(*states)
        return states

    async def until(
        self, condition: Callable[[], bool], within_s: float = 60.0, each_s: float = 0.001
    ) -> None:
        """Looks every so often, in simulated time."""
        await until(condition, within_s, each_s)

    async def finish(self, *states: RequestState) -> None:
        """Until these are over, and the verifiers have heard of it."""
        await self.until(lambda: all(state.sequence.finished for state in states))
        await asyncio.sleep(0.05)

    async def answered(self, *states: RequestState) -> None:
        """These end, and each client was told what the target says, each token once."""
        await self.finish(*states)
        for state in states:
            request = state.request
            assert await read(state) == answer_of(request.prompt, request.max_tokens)

    def clean(self) -> bool:
        """Whether neither pool holds anything, nor anybody thinks so."""
        held = any(port.port.held or port.port.pages.held for port in self.ports)
        rows = any(drafter.rows for drafter in self.drafters)
        return not (held or rows or any(map(len, self.lanes)) or any(self.load.values()))
