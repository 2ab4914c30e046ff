"""Simulated clients: requests keyed by the scenario's seed, so that a run repeats, and what their
clients measure.

Request n has the first token n modulo the number of domains and the seed `scenario.seed + n`, as
`dspark.loadgen` sends them, at the times of its schedule: the same requests to real services get
the same drafts and verdicts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from coordinator.answers.answer import Answer, CommittedTokens, RequestStats
from coordinator.lanes.request_state import RequestState, SequenceLife
from coordinator.queue.scheduler import Scheduler
from coordinator.requests.request import Request
from coordinator.simulation.scenario import Scenario, Span
from dspark.errors import DsparkError
from dspark.rounds.policy import parse_policy
from dspark.synthetic.oracle import mix_one
from dspark.types import SamplingParams


class Recorder:
    """Counts and times of one simulation. first, token, whole: seconds to a first token, of a token
    behind it, of a whole answer."""

    def __init__(self, opens: float, closes: float) -> None:
        self.opens, self.closes = opens, closes
        self.tokens = self.answers = self.failed = 0
        self.rates, self.first, self.token, self.whole = [list[float]() for _ in range(4)]

    def inside(self, now: float) -> bool:
        return self.opens <= now < self.closes


class Tap:
    """The output sink of one request: pieces are timed and dropped."""

    def __init__(self, recorder: Recorder, ended: Callable[[], object]) -> None:
        self._recorder, self._ended = recorder, ended
        self._loop = asyncio.get_running_loop()
        self._arrived = self._loop.time()
        self._first = self._last = 0.0
        self._tokens = 0

    def push(self, piece: CommittedTokens) -> None:
        count, now, recorder = len(piece.tokens), self._loop.time(), self._recorder
        if count and recorder.inside(now):
            recorder.tokens += count
            if self._tokens:
                recorder.token += [(now - self._last) / count] * count
            else:
                recorder.first.append(now - self._arrived)
        if count:
            self._first, self._last = self._first if self._tokens else now, now
            self._tokens += count

    def close(self, error: Exception | None = None) -> None:
        now, recorder = self._loop.time(), self._recorder
        if recorder.inside(now):
            recorder.failed += error is not None
            recorder.answers += error is None
            recorder.whole.append(now - self._arrived)
            if self._tokens > 1 and self._last > self._first:
                recorder.rates.append((self._tokens - 1) / (self._last - self._first))
        self._ended()


def shape(scenario: Scenario, number: int) -> tuple[tuple[int, ...], int]:
    """(prompt, tokens of the answer) of request `number`; lengths are uniform over their spans."""
    domain = number % min(len(scenario.spec.domains), scenario.spec.vocabulary)
    length = _length(scenario.prompt_tokens, number, 0, scenario.seed)
    return (domain, *(0,) * (length - 1)), _length(scenario.answer_tokens, number, 1, scenario.seed)


def _length(span: Span, number: int, purpose: int, seed: int) -> int:
    return span[0] + int(_draw(number, purpose, seed) * (span[1] - span[0] + 1))


def _draw(number: int, purpose: int, seed: int) -> float:
    """A keyed number in [0, 1)."""
    return (mix_one(mix_one((seed << 40) + number * 4 + purpose + 1)) >> 11) * 2.0**-53


class SimulatedLoad:
    """Makes requests and submits them to the scheduler."""

    def __init__(self, scenario: Scenario, admission: Scheduler, recorder: Recorder) -> None:
        self._scenario, self._admission, self._recorder = scenario, admission, recorder
        self._policy = parse_policy(scenario.policy)
        self._loop = asyncio.get_running_loop()
        self._asked = 0
        self.refused = 0

    async def run(self) -> None:
        """Sends requests until the window closes."""
        scenario = self._scenario
        if scenario.concurrency:
            for _ in range(scenario.concurrency):
                self._ask()
            await asyncio.sleep(self._recorder.closes - self._loop.time())
            return
        arrivals = random.Random(f"arrivals/{scenario.seed}")
        while self._loop.time() < self._recorder.closes:
            await asyncio.sleep(arrivals.expovariate(scenario.rate))
            self._ask()

    def _ask(self) -> None:
        number = self._asked
        self._asked += 1
        scenario = self._scenario
        prompt, most = shape(scenario, number)
        params = SamplingParams(temperature=scenario.temperature, seed=scenario.seed + number)
        request = Request(f"r{number}", prompt, params, most, self._policy)
        answer = Answer(prompt, max_tokens=most)
        tap = Tap(self._recorder, self._ended)
        state = RequestState(
            request, SequenceLife(number + 1), answer, RequestStats(self._loop.time()), tap
        )
        try:
            self._admission.check(request)
            self._admission.submit(state)
        except DsparkError:
            self.refused += self._recorder.inside(self._loop.time())

    def _ended(self) -> None:
        """In a closed loop the user sends the next request; in an open one nothing follows."""
        if self._scenario.concurrency and self._loop.time() < self._recorder.closes:
            self._loop.call_later(2 * self._scenario.hops.hop_s, self._ask)
