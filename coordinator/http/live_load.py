"""Background streams for the live page: a bounded number of answers nobody reads, so that the load can be turned up.

They are ordinary requests of whoever moved the slider, and end when nobody watches any more.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import structlog

from coordinator.http.door import Door
from coordinator.http.live_prompt import prompt_of
from coordinator.reception.answering import Answering
from dspark.client.request import Sampling, write_request
from dspark.errors import DsparkError, Overloaded

log = structlog.get_logger("dspark.live")

TOKENS = 160  # of one background answer
PAUSE_S = 1.0  # after an answer that failed


class Load:
    """Streams that run until they are turned down. `most`: streams at one time."""

    def __init__(self, door: Door, questions: Sequence[str], most: int) -> None:
        self.most = most
        self.policy = self.rule = ""
        self._door = door
        self._questions = itertools.cycle(questions)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def streams(self) -> int:
        return len(self._tasks)

    def set(self, streams: int, policy: str, rule: str) -> None:
        """So many from now on, with this policy and rule as their present answers end."""
        self.policy, self.rule = policy, rule
        wanted = min(max(streams, 0), self.most)
        while len(self._tasks) > wanted:
            self._tasks.pop().cancel()
        while len(self._tasks) < wanted:
            self._tasks.append(asyncio.create_task(self._run(len(self._tasks))))

    def close(self) -> None:
        self.set(0, "", "")

    async def _run(self, number: int) -> None:
        while True:
            try:
                await self._answer(next(self._questions), temperature=0.0 if number % 2 else 0.7)
            except DsparkError as error:
                await asyncio.sleep(error.retry_after_s if isinstance(error, Overloaded) else PAUSE_S)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # a bug: this stream tries again, and the page goes on
                log.error("live.load_failed", exc_info=error)
                await asyncio.sleep(PAUSE_S)

    async def _answer(self, question: str, *, temperature: float) -> None:
        door = self._door
        prompt, _ = await prompt_of(door, [{"role": "user", "content": question}], TOKENS)
        options = Sampling(
            max_tokens=TOKENS, temperature=temperature, policy=self.policy, rule=self.rule, ignore_eos=True
        )
        answering = await Answering.begin(
            door.desk, write_request(prompt, options), door.longest_s, door.clock, door.metrics
        )
        try:
            while not answering.done:
                await answering.parts()
        finally:
            answering.leave()
