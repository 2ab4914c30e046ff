"""A cell in simulated time: admission, lanes, planner and the very `RoundLoop`s of their verifiers, in one process.

The toy target of `fakes` says what follows; its drafter is wrong where the position is a multiple of `wrong_every`.
Every wait costs nothing, and a run is a function of what the story does.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

from fakes import VOCAB, after

from coordinator.answers.answer import Answer
from coordinator.answers.commit_log import CommitLog
from coordinator.answers.outlet import Outlet
from coordinator.answers.tally import Tally
from coordinator.lanes.explain import Explain
from coordinator.lanes.lane import Conduct
from coordinator.lanes.monitor import Monitor
from coordinator.lanes.ports import DrafterPort
from coordinator.lanes.sequence import Sequence as Life
from coordinator.lanes.track import Track
from coordinator.lanes.verifier_lane import VerifierLane
from coordinator.queue.admission import Admission, Bounds
from coordinator.requests.request import Request
from coordinator.simulation.device import Device
from coordinator.simulation.drafts import SimulatedDrafts
from coordinator.simulation.pair import Drafted, Held, Pair
from coordinator.simulation.rounds import SimulatedRounds
from coordinator.simulation.virtual_loop import run_virtual
from coordinator.simulation.world import Hops, World
from dspark.rounds.control import Down, Listener, Up
from dspark.rounds.orders import Waits
from dspark.rounds.policy import parse_policy
from dspark.runtime.telemetry import Metrics
from dspark.synthetic.law import SyntheticLaw
from dspark.synthetic.spec import read_spec
from dspark.types import Law

T = TypeVar("T")
SLOTS = 4
COSTS = read_spec(
    {
        "verify": {"tokens": [1, 101], "ms": [10, 20], "prefill_ms": 0.05},
        "draft": {"sequences": [1], "ms": [1]},
        "domains": {"all": {"accept": [0.9, 0.8, 0.8, 0.7]}},
        "vocabulary": VOCAB,
        "context_length": 4096,
    }
)


class ToyPair:
    """Arithmetic: what `fakes` says, too."""

    def __init__(self, wrong_every: int = 5) -> None:
        self.wrong_every, self.confidence = wrong_every, 0.9

    def admitted(self, held: Held) -> None:
        pass

    def first(self, held: Held) -> int:
        return after(held.tokens[-1], len(held.tokens) - 1)

    def draft(self, asked: Sequence[tuple[Held, int]]) -> list[Drafted]:
        return [Drafted(self._block(held, slots), (self.confidence,) * slots) for held, slots in asked]

    def _block(self, held: Held, slots: int) -> list[int]:
        ids: list[int] = []
        token, position = held.tokens[-1], len(held.tokens) - 1
        for _ in range(slots):
            token, position = after(token, position), position + 1
            if position % self.wrong_every == 0:
                token = (token + 1) % VOCAB
            ids.append(token)
        return ids

    def judge(self, asked: Sequence[tuple[Held, Sequence[int]]]) -> list[tuple[int, ...]]:
        drawn = []
        for held, prefix in asked:
            said: list[int] = []
            token, position = held.tokens[-1], len(held.tokens) - 1
            for slot in range(len(prefix) + 1):
                token, position = after(token, position), position + 1
                said.append(token)
                if slot < len(prefix) and prefix[slot] != token:
                    break
            drawn.append(tuple(said))
        return drawn


class Tampered:
    """A port to a verifier that says something else, and a tape of what was told both ways."""

    def __init__(self, port: SimulatedRounds) -> None:
        self.port = port
        self.tampers: Callable[[Sequence[Up]], Sequence[Up]] = lambda news: news
        self.told: list[Down] = []
        self.said: list[Up] = []
        self.closed_because = ""
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
        said = tuple(self.tampers(news))
        self.said.extend(said)
        if self._listener is not None and said:
            self._listener.heard(said)

    def lost(self, why: str) -> None:
        if self._listener is not None:
            self._listener.lost(why)


class RoundsCell:
    """Make it inside a virtual loop, see `story`."""

    def __init__(
        self,
        *,
        drafters: int = 1,
        verifiers: int = 1,
        pages: int = 0,
        waits: Conduct | None = None,
        bounds: Bounds | None = None,
        outlet: int = 4096,
        pair: Pair | None = None,
        write: Callable[[], None] = lambda: None,
        drafts: Waits | None = None,
    ) -> None:
        self.clock = asyncio.get_running_loop()
        self.metrics, self.explain = Metrics(), Explain()
        self.monitor = Monitor(self.metrics)
        self.pair = pair or ToyPair()
        self.admission = Admission(bounds or Bounds(), self.clock, self.metrics)
        self.world = World(SyntheticLaw(COSTS), Hops(1e-4, 0.0, 0.0, 0.0, 0.0, 0.0), 256)
        self.load: Counter[DrafterPort] = Counter()
        self.waits, self._pages, self._outlet, self._write = waits or Conduct(), pages, outlet, write
        self._drafts = drafts or Waits(deadline_s=0.05, patience_s=0.5, inline_rows=6)
        self._numbers, self._named = itertools.count(1), itertools.count()
        self.drafters: list[SimulatedDrafts] = []
        self.lanes: list[VerifierLane] = []
        self.ports: list[Tampered] = []
        for _ in range(drafters):
            self.add_drafter()
        for _ in range(verifiers):
            self.add_verifier()

    @property
    def lane(self) -> VerifierLane:
        return self.lanes[0]

    @property
    def port(self) -> Tampered:
        return self.ports[0]

    def add_verifier(self) -> VerifierLane:
        """What membership does when a verifier comes, and when it is lost."""
        name = f"verify/{next(self._named)}"
        rounds = SimulatedRounds(self.world, self.pair, name, Device(), self.drafters, self._pages, 4, self._drafts)
        port = Tampered(rounds)

        def lost(why: str) -> None:
            at = self.lanes.index(lane)
            del self.lanes[at], self.ports[at]
            lane.close()
            self.admission.lane_left(lane)

        lane = VerifierLane(
            rounds.facts,
            port,
            self.admission,
            load=self.load,
            waits=self.waits,
            clock=self.clock,
            metrics=self.metrics,
            explain=self.explain,
            monitor=self.monitor,
            write=self._write,
            on_lost=lost,
        )
        self.lanes.append(lane)
        self.ports.append(port)
        for drafter in self.drafters:
            lane.drafter_joined(cast("DrafterPort", drafter))
        self.admission.lane_joined(lane)
        return lane

    def add_drafter(self) -> SimulatedDrafts:
        number = next(self._named)
        drafter = SimulatedDrafts(self.world, self.pair, f"draft/{number}", number + 1)
        self.drafters.append(drafter)
        for lane in self.lanes:
            lane.drafter_joined(cast("DrafterPort", drafter))
        return drafter

    def lose_verifier(self, at: int = 0) -> None:
        """As a killed process: what it knew that was not reported is gone."""
        self.ports[at].port.close("lost")

    def lose_drafter(self, drafter: SimulatedDrafts) -> None:
        """As a killed process: both its verifiers and the coordinator see it."""
        self.drafters.remove(drafter)
        drafter.lose()
        for lane in self.lanes:
            lane.drafter_left(cast("DrafterPort", drafter))
        self.load.pop(cast("DrafterPort", drafter), None)

    def ask(
        self,
        prompt: Sequence[int] = (5, 6),
        max_tokens: int = 8,
        policy: str = "adaptive",
        law: Law | None = None,
        note_epoch: Callable[[int], object] = lambda epoch: None,
        **more: Any,
    ) -> Track:
        number = next(self._numbers)
        request = Request(
            f"r{number}", tuple(prompt), law or Law(temperature=0.0), max_tokens, parse_policy(policy), **more
        )
        return self.submit(request, number, note_epoch=note_epoch)[0]

    def submit(
        self, request: Request, number: int = 0, note_epoch: Callable[[int], object] = lambda epoch: None
    ) -> list[Track]:
        """All answers of a request."""
        tracks = []
        outlet = Outlet(self._outlet, request.choices)
        for index in range(request.choices):
            log = CommitLog(request.prompt)
            answer = Answer(log, max_tokens=request.max_tokens, stop_ids=request.stop_ids, index=index)
            life = Life(number or next(self._numbers), log)
            tracks.append(Track(request, life, answer, Tally(self.clock.time()), outlet, note_epoch))
        self.admission.submit(*tracks)
        return tracks

    async def until(self, condition: Callable[[], bool], within_s: float = 60.0, each_s: float = 0.001) -> None:
        """Looks every so often, in simulated time."""
        for _ in range(round(within_s / each_s)):
            if condition():
                return
            await asyncio.sleep(each_s)
        raise AssertionError(f"not so within {within_s:g} simulated seconds")

    async def finish(self, *tracks: Track, within_s: float = 60.0) -> None:
        """Until these are over, and the verifiers have heard of it."""
        await self.until(lambda: all(track.sequence.finished for track in tracks), within_s)
        await asyncio.sleep(0.05)

    def clean(self) -> bool:
        """Whether neither pool holds anything, nor anybody thinks so."""
        held = any(port.port.held or port.port.pages.held for port in self.ports)
        rows = any(drafter.rows for drafter in self.drafters)
        return not (held or rows or any(map(len, self.lanes)) or any(self.load.values()))


def story(tell: Callable[[RoundsCell], Awaitable[T]], **settings: Any) -> T:
    """What it returns, run in simulated time. `settings` are those of `RoundsCell`."""

    async def main() -> T:
        wrong: list[dict[str, Any]] = []  # what went wrong where nobody waits for it
        asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
        told = await tell(RoundsCell(**settings))
        assert not wrong, wrong
        return told

    return run_virtual(main())
