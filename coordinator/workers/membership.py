"""Who is there: keeps a connection to every announced worker, checks that they fit, and makes lanes of them.

One lane per verifier; every drafter that fits feeds every lane. The announced set is the whole truth: whoever is
missing is let go. A worker that breaks is tried again with a capped back-off, and counts as lost in the moment its
stream ends.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable

import grpc
import structlog

from coordinator.clock import Clock
from coordinator.lanes.explain import Explain
from coordinator.lanes.lane import Conduct, Lane
from coordinator.lanes.monitor import Monitor
from coordinator.lanes.ports import DrafterFacts, DrafterPort, VerifierFacts
from coordinator.queue.admission import Admission
from coordinator.workers.breaker import Doubts
from coordinator.workers.clients import DrafterClient, VerifierClient, drafter_facts, verifier_facts
from coordinator.workers.compatibility import drafter_mismatch, verifier_mismatch
from coordinator.workers.worker import Address, Role, Worker
from dspark.runtime.telemetry import Metrics
from dspark.runtime.tls import Tls
from dspark.wire.v1 import draft_pb2, verify_pb2

log = structlog.get_logger("dspark.membership")

ANNOUNCE_WAIT_S = 1.0  # an announcement is answered when all are connected, or after this


class Membership:
    """Workers by address, lanes by verifier."""

    def __init__(
        self,
        admission: Admission,
        *,
        waits: Conduct,
        describe_s: float,
        token: str | None,
        tls: Tls | None = None,
        clock: Clock,
        metrics: Metrics,
        write: Callable[[], None] = lambda: None,
        doubts: Doubts | None = None,
    ) -> None:
        """`write` makes commits last before they are shown, see `settling`."""
        self._write, self._doubts = write, doubts or Doubts()
        self._draining: frozenset[Address] = frozenset()
        self.explain = Explain(metrics.dropped.labels(kind="explained", reason="not_read").inc)
        self.monitor = Monitor(metrics)
        self.on_serving: Callable[[bool], None] = lambda serving: None  # told whether anybody can be taken in
        self._admission, self._waits, self._describe_s = admission, waits, describe_s
        self._token, self._tls, self._clock, self._metrics = token, tls, clock, metrics
        self._workers: dict[Address, Worker] = {}
        self._load: Counter[DrafterPort] = Counter()
        self._lanes: dict[VerifierClient, Lane] = {}
        self._drafters: dict[DrafterClient, Worker] = {}
        self._loops: set[asyncio.Task[None]] = set()
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def workers(self) -> tuple[Worker, ...]:
        return tuple(self._workers.values())

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return tuple(self._lanes.values())

    @property
    def verifiers(self) -> tuple[VerifierFacts, ...]:
        return tuple(client.facts for client in self._lanes)

    @property
    def drafters(self) -> tuple[DrafterFacts, ...]:
        return tuple(client.facts for client in self._drafters)

    async def announce(self, addresses: Iterable[Address], draining: Collection[Address] = ()) -> int:
        """Replaces the set of workers; returns how many are connected. Those that drain get nobody new."""
        wanted = dict.fromkeys(addresses)
        self._draining = frozenset(draining)
        for address in [known for known in self._workers if known not in wanted]:
            self._let_go(self._workers.pop(address), "no longer announced")
        for address in wanted:
            if address not in self._workers:
                self._workers[address] = Worker(
                    address,
                    self._join,
                    describe_s=self._describe_s,
                    doubts=self._doubts,
                    alone=self._alone,
                    token=self._token,
                    tls=self._tls,
                    metrics=self._metrics,
                )
        for worker in self._workers.values():
            self._drain(worker, worker.address in self._draining)
        waiting = [worker.settled.wait() for worker in self._workers.values()]
        if waiting:
            tasks = [asyncio.ensure_future(wait) for wait in waiting]
            await asyncio.wait(tasks, timeout=ANNOUNCE_WAIT_S)
            for task in tasks:
                task.cancel()
        return sum(worker.connected for worker in self._workers.values())

    def idle(self) -> tuple[str, ...]:
        """Names of workers that were announced as draining and that no sequence needs any more."""
        return tuple(
            worker.address.name
            for worker in self._workers.values()
            if worker.address in self._draining and not self._sequences(worker)
        )

    def _alone(self, worker: Worker) -> bool:
        """Whether nobody else of its role is connected."""
        role = worker.address.role
        return not any(
            other.connected and not other.leaving
            for other in self._workers.values()
            if other is not worker and other.address.role is role
        )

    def _sequences(self, worker: Worker) -> int:
        if isinstance(worker.port, VerifierClient):
            return len(self._lanes[worker.port])
        return self._load[worker.port] if isinstance(worker.port, DrafterClient) else 0

    def _drain(self, worker: Worker, drains: bool) -> None:
        """By the operator's word: nobody new, and who is there finishes."""
        if isinstance(worker.port, VerifierClient):
            self._lanes[worker.port].draining = drains or worker.leaving
        elif isinstance(worker.port, DrafterClient):
            for lane in self._lanes.values():
                lane.drafter_leaves(worker.port, drains or worker.leaving)

    def _leaves(self, worker: Worker, finish_within_s: float) -> None:
        """By the worker's own word: it ends in so many seconds."""
        log.info("worker.draining", worker=worker.address.name, finish_within_s=round(finish_within_s, 1))
        worker.leaving, worker.state = True, "draining"
        self._drain(worker, True)
        if isinstance(worker.port, VerifierClient):
            self._lanes[worker.port].drain(finish_within_s)
        self._note_fits()

    async def close(self) -> None:
        workers, self._workers = self._workers, {}
        for worker in workers.values():
            self._let_go(worker, "the coordinator stops")
        await asyncio.gather(*self._leaving, *self._loops, return_exceptions=True)

    def _let_go(self, worker: Worker, why: str) -> None:
        log.info("worker.let_go", worker=worker.address.name, why=why)
        if isinstance(worker.port, VerifierClient):
            self._lanes[worker.port].move_all()
        leaving = asyncio.get_running_loop().create_task(worker.close(why))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        worker.drop(why)

    # One worker came or went. Both happen between two turns of the event loop.

    def _join(
        self,
        worker: Worker,
        said: verify_pb2.VerifierDescription | draft_pb2.DrafterDescription,
        channel: grpc.aio.Channel,
    ) -> str | None:
        """Takes a described worker in; or says in a sentence why not."""
        name, endpoint = worker.address.name, worker.address.endpoint
        if isinstance(said, verify_pb2.VerifierDescription):
            return self._verifier_came(worker, verifier_facts(name, endpoint, said), channel)
        return self._drafter_came(worker, drafter_facts(name, endpoint, said), channel)

    def _verifier_came(self, worker: Worker, facts: VerifierFacts, channel: grpc.aio.Channel) -> str | None:
        for other in self.verifiers:
            problem = verifier_mismatch(other, facts)
            if problem is not None:
                return problem

        def lost(why: str) -> None:
            lane = self._lanes.pop(client)
            lane.close()
            self._admission.lane_left(lane)
            self._gone(worker, why)

        def leaves(finish_within_s: float) -> None:
            self._leaves(worker, finish_within_s)

        client = VerifierClient(facts, channel, self._token, self._metrics, lost, leaves)
        worker.hold(client, client.session)
        lane = Lane(
            client,
            self._admission,
            load=self._load,
            waits=self._waits,
            clock=self._clock,
            metrics=self._metrics,
            explain=self.explain,
            monitor=self.monitor,
            write=self._write,
        )
        self._lanes[client] = lane
        for drafter in self._drafters:
            if drafter_mismatch(facts, drafter.facts) is None:
                lane.drafter_joined(drafter)
        for each in self._workers.values():
            self._drain(each, each.address in self._draining)
        self._note_fits()
        loop = asyncio.get_running_loop().create_task(lane.run())
        self._loops.add(loop)
        loop.add_done_callback(lambda done: self._loop_ended(done, client))
        self._admission.lane_joined(lane)
        log.info("lane.opened", verifier=facts.name, model=facts.model, drafters=len(lane.drafters))
        return None

    def _drafter_came(self, worker: Worker, facts: DrafterFacts, channel: grpc.aio.Channel) -> str | None:
        problems = [drafter_mismatch(verifier, facts) for verifier in self.verifiers]
        if problems and all(problems):
            return problems[0]

        def lost(why: str) -> None:
            del self._drafters[client]
            for lane in self._lanes.values():
                lane.drafter_left(client)
            self._load.pop(client, None)
            self._gone(worker, why)

        def leaves(finish_within_s: float) -> None:
            self._leaves(worker, finish_within_s)

        client = DrafterClient(facts, channel, self._token, self._metrics, lost, leaves)
        worker.hold(client, client.session)
        self._drafters[client] = worker
        for verifier, lane in self._lanes.items():
            if drafter_mismatch(verifier.facts, facts) is None:
                lane.drafter_joined(client)
        self._drain(worker, worker.address in self._draining)
        self._note_fits()
        log.info("drafter.joined", drafter=facts.name, model=facts.model)
        return None

    def _note_fits(self) -> None:
        """A drafter that came before any verifier learns here whether it fits; the next one may be the right one."""
        for drafter, worker in self._drafters.items():
            problems = [drafter_mismatch(verifier, drafter.facts) for verifier in self.verifiers]
            problem = next(filter(None, problems), "") if all(problems) else ""
            if problem != worker.detail and not worker.leaving:
                worker.state, worker.detail = ("connecting", problem) if problem else ("serving", "")
                if problem:
                    log.warning("drafter.does_not_fit", drafter=drafter.facts.name, why=problem)
        self.on_serving(any(not lane.draining for lane in self.lanes))
        for role in Role:
            states = Counter(worker.state for worker in self._workers.values() if worker.address.role is role)
            for state in ("serving", "connecting", "draining"):
                self._metrics.pool_replicas.labels(pool=role.value, state=state).set(states[state])

    def _gone(self, worker: Worker, why: str) -> None:
        if self._workers.get(worker.address) is worker and not worker.leaving:  # otherwise it was let go
            self._metrics.worker_losses.labels(pool=worker.address.role.value).inc()
            log.warning("worker.lost", worker=worker.address.name, why=why)
        worker.lost(why)
        self._note_fits()

    def _loop_ended(self, done: asyncio.Task[None], client: VerifierClient) -> None:
        self._loops.discard(done)
        error = None if done.cancelled() else done.exception()
        if error is not None:  # a bug: its sequences get a fresh lane rather than none
            log.error("lane.failed", verifier=client.facts.name, exc_info=error)
            client.close("its lane failed")
