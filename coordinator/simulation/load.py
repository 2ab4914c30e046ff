"""Who asks, when and for what: keyed by the scenario's seed, so that a run repeats."""

from __future__ import annotations

import asyncio
import math

import numpy as np

from coordinator.admission import Admission
from coordinator.answer import Answer
from coordinator.commit_log import CommitLog
from coordinator.policy import parse_policy
from coordinator.request import Request
from coordinator.sequence import Sequence
from coordinator.simulation.recorder import Recorder, Tap
from coordinator.simulation.scenario import Scenario, Span
from coordinator.tally import Tally
from coordinator.track import Track
from dspark.errors import DsparkError
from dspark.synthetic.law import mix_one
from dspark.types import Law

_MASK = (1 << 64) - 1


class Load:
    """Makes requests and hands them to admission."""

    def __init__(self, scenario: Scenario, admission: Admission, recorder: Recorder) -> None:
        self._scenario, self._admission, self._recorder = scenario, admission, recorder
        self._policy = parse_policy(scenario.policy)
        self._domains = len(scenario.spec.domains)
        self._tail = (0,) * scenario.prompt_tokens[1]
        self._loop = asyncio.get_running_loop()
        self._asked = 0
        self.refused = 0

    async def run(self) -> None:
        """Asks until the window closes."""
        scenario = self._scenario
        if scenario.concurrency:
            for _ in range(scenario.concurrency):
                self._ask()
            await asyncio.sleep(self._recorder.closes - self._loop.time())
            return
        while self._loop.time() < self._recorder.closes:
            share = self._draw(self._asked, 3)
            await asyncio.sleep(-math.log1p(-share) / scenario.rate)
            self._ask()

    def _ask(self) -> None:
        number = self._asked
        self._asked += 1
        scenario = self._scenario
        first = int(self._draw(number, 0) * self._domains) % max(scenario.spec.vocabulary, 1)
        prompt = (first, *self._tail[: self._length(number, 1, scenario.prompt_tokens) - 1])
        most = self._length(number, 2, scenario.answer_tokens)
        law = Law(temperature=scenario.temperature, seed=mix_one((scenario.seed << 32 ^ number) & _MASK))
        request = Request(f"r{number}", prompt, law, most, self._policy)
        log = CommitLog(prompt)
        answer = Answer(log, max_tokens=most)
        tap = Tap(self._recorder, number, self._ended)
        track = Track(request, Sequence(number + 1, log), answer, Tally(self._loop.time()), tap)
        try:
            self._admission.submit(track)
        except DsparkError:
            self.refused += self._recorder.inside(self._loop.time())

    def _ended(self, _: int) -> None:
        """A user of a closed loop asks again; nobody does in an open one."""
        if self._scenario.concurrency and self._loop.time() < self._recorder.closes:
            self._loop.call_later(2 * self._scenario.hops.hop_s, self._ask)

    def _length(self, number: int, purpose: int, span: Span) -> int:
        return span[0] + int(self._draw(number, purpose) * (span[1] - span[0] + 1))

    def _draw(self, number: int, purpose: int) -> float:
        key = mix_one((self._scenario.seed * 0x9E3779B97F4A7C15 + number * 8 + purpose + 1) & _MASK)
        return float(np.float64(mix_one(key) >> 11) * 2.0**-53)
