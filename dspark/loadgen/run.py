"""Runs one measurement: requests at a given concurrency (closed loop) or rate (open loop).

A closed loop has a fixed number of users, each of which sends a request as soon as its last one is
answered. In an open loop requests arrive at random (exponential gaps) whatever the server does; the
schedule is drawn before the first request is sent.

Only the window counts: it opens after the warm-up and closes with the last measured answer (closed
loop), with the last arrival (open loop: the load declines after it), or when the given time is
over. Answers in progress then are cut; their tokens inside the window count, their latencies do
not.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from dspark.errors import DsparkError, Expired, InvalidRequest, WrongCommand
from dspark.loadgen.answer import Endpoint, MeasuredAnswer
from dspark.loadgen.prompts import Question
from dspark.progress import progress

CUT = "cut"
MOST_USERS, MOST_REQUESTS = 1 << 16, 10_000_000


@dataclass(frozen=True)
class LoadPlan:
    """The load of one measurement: exactly one of `concurrency` (users) and `rate` (requests a
    second) is set.

    requests: measured ones; 0: as many as duration_s allows. duration_s: longest window; 0: until
    all requests are answered. warmup: requests before the window. timeout_s: longest answer.
    outstanding: most requests open at a time in an open loop; others wait, which adds latency.
    """

    concurrency: int = 0
    rate: float = 0.0
    requests: int = 0
    duration_s: float = 0.0
    warmup: int = 0
    timeout_s: float = 600.0
    outstanding: int = 4096
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.concurrency > 0) == (self.rate > 0):
            raise WrongCommand("concurrency: give either a concurrency or a rate, above 0")
        if self.concurrency > MOST_USERS:
            raise WrongCommand(f"concurrency: {self.concurrency} is above {MOST_USERS}")
        if max(self.requests, self.rate * self.duration_s) + self.warmup > MOST_REQUESTS:
            raise WrongCommand(f"requests: more than {MOST_REQUESTS} at one point")
        if self.requests <= 0 and self.duration_s <= 0:
            raise WrongCommand("requests: give a number of requests, a duration or both")
        if self.duration_s and 0 < self.rate * self.duration_s < 1:
            # its warm-up, too, could take for ever
            raise WrongCommand(f"rate: {self.rate:g} is no request in {self.duration_s:g} s")


@dataclass
class Outcome:
    """The answers of a measurement, in an open loop with those of the warm-up; counters are
    differences over the window."""

    plan: LoadPlan
    opened: float = 0.0
    closed: float = 0.0
    answers: list[MeasuredAnswer] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)

    @property
    def measured(self) -> list[MeasuredAnswer]:
        """Answers that were meant to start inside the window."""
        return [answer for answer in self.answers if answer.intended >= self.opened]

    def tokens(self, opens: float, closes: float) -> int:
        """Tokens that arrived from `opens` to `closes`."""
        return sum(
            max(count, 0)
            for answer in self.answers
            for when, count in zip(answer.times, answer.counts, strict=True)
            if opens <= when <= closes
        )


async def run(
    endpoint: Endpoint, questions: Iterator[Question], plan: LoadPlan, *, bar: bool = False
) -> Outcome:
    """Runs the warm-up and the window. Raises the first InvalidRequest of the server."""
    load = f"{plan.concurrency} users" if plan.concurrency else f"{plan.rate:g} a second"
    total = plan.requests + plan.warmup if plan.requests else None
    with progress(f"{endpoint.name}, {load}", total, shown=bar) as tell:
        asked = _Load(endpoint, questions, plan, tell)
        try:
            return await (asked.closed_loop() if plan.concurrency else asked.open_loop())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None


class _Load:
    def __init__(
        self,
        endpoint: Endpoint,
        questions: Iterator[Question],
        plan: LoadPlan,
        tell: Callable[..., None],
    ) -> None:
        self._endpoint = endpoint
        self._questions = questions
        self._plan = plan
        self._tell = tell
        self._numbers = itertools.count()
        self._outcome = Outcome(plan)
        self._answered = self._tokens = 0  # those of the warm-up included

    async def closed_loop(self) -> Outcome:
        if self._plan.warmup:
            await self._users(self._plan.concurrency, self._plan.warmup)
            self._outcome.answers.clear()
        before = await self._open(time.perf_counter)
        users = self._users(self._plan.concurrency, self._plan.requests)
        await _within(self._plan.duration_s or None, users)
        return await self._close(time.perf_counter(), before)

    async def open_loop(self) -> Outcome:
        plan, rng = self._plan, random.Random(f"arrivals/{self._plan.seed}")
        many = plan.requests or max(1, round(plan.rate * plan.duration_s))
        gaps = [rng.expovariate(plan.rate) for _ in range(plan.warmup + many)]
        start = time.perf_counter() + 0.05
        schedule = [start + offset for offset in itertools.accumulate(gaps)]
        closes = schedule[-1] + 1 / plan.rate
        before = await self._open(lambda: schedule[plan.warmup])
        gate = asyncio.Semaphore(plan.outstanding)

        async def arrivals() -> None:
            async with asyncio.TaskGroup() as group:
                for intended in schedule:
                    await asyncio.sleep(intended - time.perf_counter())
                    await gate.acquire()
                    group.create_task(self._ask(intended)).add_done_callback(
                        lambda _: gate.release()
                    )

        if plan.duration_s:
            closes = min(closes, self._outcome.opened + plan.duration_s)
            await _within(closes - time.perf_counter(), arrivals())
        else:
            await arrivals()
            closes = min(closes, time.perf_counter())
        return await self._close(closes, before)

    async def _open(self, when: Callable[[], float]) -> dict[str, float]:
        counters = await self._endpoint.counters()
        self._outcome.opened = when()
        return counters

    async def _close(self, when: float, before: dict[str, float]) -> Outcome:
        self._outcome.closed = when
        after = await self._endpoint.counters()
        self._outcome.counters = {name: after[name] - before.get(name, 0.0) for name in after}
        return self._outcome

    async def _users(self, users: int, requests: int) -> None:
        """Keeps `users` requests running until `requests` were sent; 0: without end."""
        left = itertools.count() if requests <= 0 else iter(range(requests))

        async def user() -> None:
            for _ in left:
                await self._ask(time.perf_counter())

        async with asyncio.TaskGroup() as group:
            for _ in range(users):
                group.create_task(user())

    async def _ask(self, intended: float) -> None:
        answer = MeasuredAnswer(next(self._questions), intended, sent=time.perf_counter())
        self._outcome.answers.append(answer)
        stream = self._endpoint.stream(answer.question, next(self._numbers))
        try:
            async with asyncio.timeout(self._plan.timeout_s), contextlib.aclosing(stream):  # type: ignore[type-var]
                async for piece in stream:
                    answer.take(piece, time.perf_counter())
            if not answer.tokens:
                answer.error = "Empty"
        except DsparkError as error:
            answer.error = type(error).__name__
            if isinstance(error, InvalidRequest):  # every further request would fail alike
                raise
        except TimeoutError:
            answer.error = Expired.__name__
        except asyncio.CancelledError:
            answer.error = CUT
            raise
        finally:
            answer.ended = time.perf_counter()
            self._answered += 1
            self._tokens += answer.tokens
            self._tell(completed=self._answered, note=f"{self._tokens:,} tokens")


async def _within(longest_s: float | None, work: Awaitable[None]) -> None:
    """Runs the work of the window, cut when its time is over."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(longest_s):
            await work
