"""The cell's state for the live page, and the background streams that load the cell.

Four frames a second are made, once for all watchers, and none without watchers. Background streams
are a bounded number of requests whose answers are dropped: ordinary requests of the caller who set
the load, which end when the last watcher has left.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import structlog

from coordinator.http.api import Api
from coordinator.http.stream import EventStream, event
from coordinator.lanes.lane import Lane
from coordinator.lanes.watch import CommittedRound, RoundWatch
from coordinator.live.answer import prompt_of
from coordinator.queue.scheduler import Scheduler
from coordinator.watching.explaining import step_of
from coordinator.workers.membership import Membership
from coordinator.workers.worker import WorkerConnection
from dspark.client.request import Options, write_request
from dspark.errors import DsparkError, Overloaded
from dspark.wire.v1.control_pb2 import EndedAnswer, RoundExplanation

log = structlog.get_logger("dspark.live")

TOKENS = 160  # of one background answer
PAUSE_S = 1.0  # after an answer that failed


class BackgroundLoad:
    """Background streams, each a loop of requests. questions: prompts. most: streams at a time."""

    def __init__(self, api: Api, questions: Sequence[str], most: int) -> None:
        self.most = most
        self.policy = self.rule = ""
        self._door = api
        self._questions = itertools.cycle(questions)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def streams(self) -> int:
        return len(self._tasks)

    def set(self, streams: int, policy: str, rule: str) -> None:
        """Sets the number of streams; policy and rule apply from each stream's next answer on."""
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
                await asyncio.sleep(
                    error.retry_after_s if isinstance(error, Overloaded) else PAUSE_S
                )
            except Exception as error:  # a bug: this stream tries again, and the page goes on
                log.error("live.load_failed", exc_info=error)
                await asyncio.sleep(PAUSE_S)

    async def _answer(self, question: str, *, temperature: float) -> None:
        api = self._door
        prompt, _ = await prompt_of(api, [{"role": "user", "content": question}], TOKENS)
        options = Options(
            max_tokens=TOKENS,
            temperature=temperature,
            policy=self.policy,
            rule=self.rule,
            ignore_eos=True,
        )
        stream = await api.processor.accept(write_request(prompt, options))
        try:
            while not stream.done:
                await stream.parts()
        finally:
            stream.leave()


FRAME_S = 0.25
LINGER_S = 5.0  # background streams outlast the last watcher by this, as a page may be reloaded
MAX_WATCHERS = 64
SHOWN = 4  # ended answers in a frame


class CellFeed:
    """Makes frames of the cell's state while there are watchers."""

    def __init__(
        self, api: Api, membership: Membership, admission: Scheduler, load: BackgroundLoad
    ) -> None:
        self._api, self._membership, self._admission, self._load = api, membership, admission, load
        self._watchers = 0
        self._next: asyncio.Future[bytes | None]  # the next frame, None once the feed has ended
        self._task: asyncio.Task[None] | None = None

    def stream(self) -> EventStream:
        """An event stream: `hello`, then `cell` frames until the watcher leaves."""

        async def events() -> AsyncGenerator[bytes]:
            self._enter()
            try:
                yield event({"type": "hello", "frame_s": FRAME_S})
                while (frame := await asyncio.shield(self._next)) is not None:
                    yield frame
            finally:
                self._watchers -= 1

        return EventStream(self._api, events())

    def set_load(self, streams: int, policy: str, rule: str) -> None:
        """Sets the background streams, which end `LINGER_S` after the last watcher has left. Raises
        Overloaded as `_wake`."""
        self._wake()
        self._load.set(streams, policy, rule)

    def _enter(self) -> None:
        if self._watchers >= MAX_WATCHERS:
            raise Overloaded(f"{MAX_WATCHERS} pages watch already", retry_after_s=5.0)
        self._wake()
        self._watchers += 1

    def _wake(self) -> None:
        """Starts the feed where there is none. Raises Overloaded where too many watch already."""
        if self._task is None or self._task.done():
            watch = self._membership.explain.cell()
            self._next = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run(watch))

    async def _run(self, watch: RoundWatch[CommittedRound]) -> None:
        """Makes frames until there were no watchers for `LINGER_S`, or the coordinator drains."""
        try:
            with watch:
                now = self._api.processor.clock.time
                seen = now()
                while not self._admission.draining and now() - seen <= LINGER_S:
                    await asyncio.sleep(FRAME_S)
                    if self._watchers:
                        seen = now()
                        frame = event(self._cell(watch.taken()))
                        shown, self._next = self._next, self._next.get_loop().create_future()
                        shown.set_result(frame)
        except Exception as error:  # a bug: pages reconnect and start a new feed
            log.error("live.feed_failed", exc_info=error)
        finally:
            self._load.close()
            self._next.set_result(None)

    def _cell(self, rounds: list[CommittedRound]) -> dict[str, Any]:
        membership = self._membership
        return {
            "type": "cell",
            "running": self._admission.running,
            "load": {"streams": self._load.streams, "most": self._load.most},
            "lanes": [self._lane(lane, rounds) for lane in membership.lanes],
            "ended": [_ended(each) for each in self._admission.endings.last(SHOWN)],
            "workers": [_worker(each, membership.sequences(each)) for each in membership.workers],
        }

    def _lane(self, lane: Lane, rounds: list[CommittedRound]) -> dict[str, Any]:
        waiting = lane.waiting
        mine = [each for each in rounds if each.lane == lane.facts.name]
        expected = lane.expected_rates if mine else None
        return {
            "name": lane.facts.name,
            "running": len(lane) - waiting,
            "curve": lane.facts.cost is not None,
            **_recent([step_of(each) for each in mine]),
            "rates": None
            if expected is None
            else {
                "points": [(round(slots, 1), round(rate, 1)) for slots, rate in expected[0]],
                "chosen": round(expected[1], 1),
            },
        }


def _recent(rounds: list[RoundExplanation]) -> dict[str, Any]:
    """Sums over a frame's rounds and their mean time; the page makes other means from the sums."""
    turns = sum(each.sequences for each in rounds)
    late = Counter(name for each in rounds for name in each.late)
    return {
        "turns": turns,
        "drafted": sum(each.step_drafted for each in rounds),
        "verified": sum(each.step_verified for each in rounds),
        "committed": sum(each.step_committed for each in rounds),
        "late": dict(late),
        "round_ms": round(sum(each.round_ms for each in rounds) / max(len(rounds), 1), 3),
    }


def _ended(each: EndedAnswer) -> dict[str, Any]:
    """An ended answer as the page shows it."""
    return {
        "id": each.request_id,
        "index": each.index,
        "outcome": each.outcome,
        "tokens": each.completion_tokens,
        "rounds": sum(each.accepted_histogram),
        "tau": round(each.mean_acceptance_length, 2),
        "ms": round(each.total_ms, 1),
    }


def _worker(worker: WorkerConnection, sequences: int) -> dict[str, Any]:
    address = worker.address
    return {
        "role": address.role.value,
        "name": address.name,
        "state": worker.state,
        "detail": worker.detail,
        "sequences": sequences,
    }
