"""Membership of the cell: keeps a connection to every announced worker, checks that workers fit,
and makes lanes of them.

One lane per verifier; every drafter feeds every lane that it fits. An announcement replaces the set
of workers: those it does not name are dropped. A worker is lost when its stream ends, and is tried
again with a capped back-off. A worker serves once its first requests have run, see `warming`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import partial

import grpc
import structlog

from coordinator.clock import Timer, until
from coordinator.lanes.facts import DrafterFacts, VerifierFacts
from coordinator.lanes.lane import Lane
from coordinator.lanes.lane_context import LaneContext
from coordinator.queue.scheduler import Scheduler
from coordinator.workers.clients import DrafterClient, VerifierClient, WorkerPort
from coordinator.workers.descriptions import (
    drafter_facts,
    drafter_mismatch,
    senseless,
    verifier_facts,
    verifier_mismatch,
)
from coordinator.workers.warming import WarmUpFailed, warm
from coordinator.workers.worker import Address, WorkerConnection, WorkerRole
from dspark.runtime.security import Security
from dspark.wire.v1 import draft_pb2, verify_pb2

log = structlog.get_logger("dspark.membership")

# Longest wait for the sequences of a dropped verifier to settle; the others are lost with it.
SETTLE_S = 2.0
CONNECT_S = 1.0  # longest wait for first attempts to connect, first requests aside


class Membership:
    """The announced workers by address, and the lanes by verifier."""

    def __init__(self, admission: Scheduler, shared: LaneContext, security: Security) -> None:
        self._shared, self._security, self._config = shared, security, shared.config
        self._ready = False
        self._patience: Timer | None = None
        self._draining: frozenset[Address] = frozenset()
        self.explain, self.monitor = shared.explain, shared.monitor
        # called with whether the cell is ready
        self.on_serving: Callable[[bool], None] = lambda serving: None
        self._admission, self._clock, self._metrics = admission, shared.clock, shared.metrics
        admission.verifier_warms = self._verifier_warms
        self._workers: dict[Address, WorkerConnection] = {}
        self._lanes: dict[VerifierClient, Lane] = {}
        self._drafters: dict[DrafterClient, WorkerConnection] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def workers(self) -> tuple[WorkerConnection, ...]:
        return tuple(self._workers.values())

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return tuple(self._lanes.values())

    @property
    def verifiers(self) -> tuple[VerifierFacts, ...]:
        return tuple([client.facts for client in self._lanes])

    @property
    def drafters(self) -> tuple[DrafterFacts, ...]:
        return tuple([client.facts for client in self._drafters])

    def why_not(self, port: WorkerPort) -> str:
        """Why a connected worker is not used, as a sentence for people; empty when it is used."""
        found = self.monitor.why_not(port.facts.fingerprint)
        if found or not isinstance(port, DrafterClient):
            return found
        return next(filter(None, (lane.why_left_out(port) for lane in self.lanes)), "")

    @property
    def ready(self) -> bool:
        """Whether the cell is warm: there is a lane, and if drafters were announced, one has
        connected or `warm_up_s` has passed."""
        return self._ready and any(not lane.draining for lane in self._lanes.values())

    def announce(self, addresses: Iterable[Address], draining: Collection[Address] = ()) -> None:
        """Replaces the set of workers. Those in `draining` get no new sequences."""
        wanted = dict.fromkeys(addresses)
        self._draining = frozenset(draining)
        for address in [known for known in self._workers if known not in wanted]:
            self._let_go(self._workers.pop(address), "no longer announced")
        for address in wanted:
            if address not in self._workers:
                self._workers[address] = WorkerConnection(
                    address,
                    self._join,
                    self._alone,
                    self._config,
                    self._security,
                    self._metrics,
                )
        self._note_fits()

    async def settled(self) -> None:
        """Waits until every worker has joined or failed to, for a bounded time."""
        longest_s = CONNECT_S + self._config.warm_up_s
        await until(lambda: all(worker.settled for worker in self.workers), longest_s)

    def idle(self) -> tuple[str, ...]:
        """Names of workers that were announced as draining and hold no sequence any more."""
        return tuple(
            worker.address.name
            for worker in self._workers.values()
            if worker.address in self._draining and not self.sequences(worker)
        )

    def _alone(self, worker: WorkerConnection) -> bool:
        """Whether no other worker of its role is connected, warm and staying."""
        role = worker.address.role
        return not any(
            other.warm and not other.leaving
            for other in self._workers.values()
            if other is not worker and other.address.role is role
        )

    def sequences(self, worker: WorkerConnection) -> int:
        """How many sequences of this coordinator a worker serves."""
        if isinstance(worker.port, VerifierClient):
            lane = self._lanes.get(worker.port)
            return len(lane) if lane is not None else 0
        return self._shared.load[worker.port] if isinstance(worker.port, DrafterClient) else 0

    def _drain(self, worker: WorkerConnection) -> None:
        """Gives a worker that leaves, or that the operator drains, no new sequences."""
        drains = worker.leaving or worker.address in self._draining
        if isinstance(worker.port, VerifierClient):
            if worker.port in self._lanes:
                self._lanes[worker.port].draining = drains
        elif isinstance(worker.port, DrafterClient):
            for lane in self._lanes.values():
                lane.drafter_leaves(worker.port, drains)

    def _leaves(self, worker: WorkerConnection, finish_within_s: float) -> None:
        """Drains a worker that announced its own end in `finish_within_s` seconds."""
        log.info(
            "worker.draining", worker=worker.address.name, finish_within_s=round(finish_within_s, 1)
        )
        worker.leaving, worker.state = True, "draining"
        self._note_fits()

    async def close(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        workers, self._workers = self._workers, {}
        for worker in workers.values():
            self._let_go(worker, "the coordinator stops")
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def _let_go(self, worker: WorkerConnection, why: str) -> None:
        log.info("worker.let_go", worker=worker.address.name, why=why)
        lane = self._lanes.get(worker.port) if isinstance(worker.port, VerifierClient) else None
        worker.retire()
        if lane is None or not len(lane):
            worker.drop(why)
        else:
            lane.move_all()
        leaving = self._clock.create_task(_close(worker, lane, why))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    # Workers that join or are lost. Lanes and drafters change within one turn of the event loop.

    async def _join(
        self,
        worker: WorkerConnection,
        said: verify_pb2.VerifierDescription | draft_pb2.DrafterDescription,
        channel: grpc.aio.Channel,
    ) -> str | None:
        """Adds a described worker and returns None, or returns a sentence why not."""
        name, endpoint, worker.has_run = worker.address.name, worker.address.endpoint, said.warm
        for other in self._workers.values():
            held = other.port if other is not worker else None
            if held is not None and held.facts.incarnation == said.incarnation:
                # under another name, and its room would count twice
                return f"the same process as {other.address.name} at {other.address.endpoint}"
        if isinstance(said, verify_pb2.VerifierDescription):
            verifier = verifier_facts(name, endpoint, said)
            return senseless(verifier) or await self._verifier_came(worker, verifier, channel)
        drafter = drafter_facts(name, endpoint, said)
        return senseless(drafter) or await self._drafter_came(worker, drafter, channel)

    async def _verifier_came(
        self, worker: WorkerConnection, facts: VerifierFacts, channel: grpc.aio.Channel
    ) -> str | None:
        if (problem := self._unlike(facts)) is not None:
            return problem

        def lost(why: str) -> None:
            lane = self._lanes.pop(client, None)
            try:
                if lane is not None:
                    self._admission.lane_left(lane)
            finally:  # a bug must not keep the verifier out for ever
                self._gone(worker, why)

        client = VerifierClient(
            facts, channel, self._security.token, lost, partial(self._leaves, worker)
        )
        worker.hold(client)
        if (problem := await self._warm(worker, client) or self._unlike(facts)) is not None:
            return problem
        lane = self._lanes[client] = Lane(facts, client, self._admission, self._shared)
        worker.serves()
        for _, drafter in self._fitting(client):
            lane.drafter_joined(drafter)
        self._await_drafters()
        self._note_fits()
        self._admission.lane_joined(lane)
        log.info("lane.opened", verifier=facts.name, model=facts.model, drafters=len(lane.drafters))
        if facts.cost is None:
            log.warning(
                "lane.no_cost_curve", verifier=facts.name, effect="adaptive verifies everything"
            )
        return None

    def _unlike(self, facts: VerifierFacts) -> str | None:
        return next(
            filter(None, (verifier_mismatch(other, facts) for other in self.verifiers)), None
        )

    async def _drafter_came(
        self, worker: WorkerConnection, facts: DrafterFacts, channel: grpc.aio.Channel
    ) -> str | None:
        problems = [drafter_mismatch(verifier, facts) for verifier in self.verifiers]
        if problems and all(problems):
            return problems[0]

        def lost(why: str) -> None:
            self._drafters.pop(client, None)
            try:
                for lane in self._lanes.values():
                    lane.drafter_left(client)
            finally:
                self._shared.load.pop(client, None)
                self._gone(worker, why)

        client = DrafterClient(
            facts, channel, self._security.token, lost, partial(self._leaves, worker)
        )
        worker.hold(client)
        if (problem := await self._warm(worker, client)) is not None:
            return problem
        self._drafters[client] = worker
        worker.serves()
        for verifier, _ in self._fitting(client):
            self._lanes[verifier].drafter_joined(client)
        self._note_fits()
        log.info("drafter.joined", drafter=facts.name, model=facts.model)
        return None

    # The first requests of a worker.

    def _verifier_warms(self) -> bool:
        return any(
            each.address.role is WorkerRole.VERIFY and each.state == "warming"
            for each in self._workers.values()
        )

    def _fitting(self, client: WorkerPort) -> list[tuple[VerifierClient, DrafterClient]]:
        """Pairs of the worker with each connected worker of the other role that it fits."""
        pairs = [
            (verifier, drafter)
            for verifier in (self._lanes if isinstance(client, DrafterClient) else (client,))
            for drafter in (self._drafters if isinstance(client, VerifierClient) else (client,))
        ]
        return [pair for pair in pairs if drafter_mismatch(pair[0].facts, pair[1].facts) is None]

    async def _warm(self, worker: WorkerConnection, client: WorkerPort) -> str | None:
        """Runs a worker's first requests; returns why it cannot serve, or None. A drafted request
        that fails is no reason."""
        if not self._config.warm_up_s or worker.has_run:
            return None
        if isinstance(client, VerifierClient) and (problem := await self._first_request(client)):
            return problem
        warmed = list[tuple[VerifierClient, DrafterClient]]()
        while worker.port is client:
            new = [pair for pair in self._fitting(client) if pair not in warmed]
            if not new:
                return None
            await asyncio.gather(*(self._first_request(*pair) for pair in new))
            warmed += new
        return f"it was lost while its first requests ran: {worker.detail}"

    async def _first_request(
        self, verifier: VerifierClient, drafter: DrafterClient | None = None
    ) -> str | None:
        """Runs one request, drafted or plain; returns why it did not complete, or None."""
        problem = None
        longest_s = self._config.warm_up_s
        try:
            async with asyncio.timeout(longest_s):
                await warm(verifier, drafter, config=self._config, clock=self._clock)
        except TimeoutError:
            problem = f"its first requests did not end within {longest_s:g} s"
        except WarmUpFailed as error:
            problem = f"its first requests failed: {error}"
        if problem is not None:
            name = drafter.facts.name if drafter is not None else ""
            log.warning("worker.not_warm", verifier=verifier.facts.name, drafter=name, why=problem)
        return problem

    def _await_drafters(self) -> None:
        """Makes the cell ready after `warm_up_s`, even without a drafter."""
        if self._ready or self._patience is not None:
            return

        def over() -> None:
            self._ready = True
            self._note_fits()

        self._patience = self._clock.call_later(self._config.warm_up_s, over)

    def _note_fits(self) -> None:
        """Updates who drains, and whether each drafter fits any verifier, which changes as
        verifiers come and go; then readiness, the queue and the pool metrics."""
        for each in self._workers.values():
            self._drain(each)
        for drafter, worker in self._drafters.items():
            problems = [drafter_mismatch(verifier, drafter.facts) for verifier in self.verifiers]
            problem = next(filter(None, problems), "") if all(problems) else ""
            if problem != worker.detail and not worker.leaving:
                worker.state, worker.detail = "connecting" if problem else "serving", problem
                if problem:
                    log.warning("drafter.does_not_fit", drafter=drafter.facts.name, why=problem)
        wanted = any(worker.address.role is WorkerRole.DRAFT for worker in self.workers)
        if self._lanes and (self._drafters or not wanted or not self._config.warm_up_s):
            self._ready = True
        self.on_serving(self.ready)
        self._admission.lanes_changed()
        for role in WorkerRole:
            states = Counter(
                worker.state for worker in self._workers.values() if worker.address.role is role
            )
            for state in ("serving", "warming", "connecting", "draining", "lost"):
                self._metrics.pool_replicas.labels(pool=role.value, state=state).set(states[state])

    def _gone(self, worker: WorkerConnection, why: str) -> None:
        if self._workers.get(worker.address) is worker and not worker.leaving:
            # otherwise it was dropped, or had announced its end
            self._metrics.worker_losses.labels(pool=worker.address.role.value).inc()
            log.warning("worker.lost", worker=worker.address.name, why=why)
        worker.lost(why)
        self._note_fits()


async def _close(worker: WorkerConnection, lane: Lane | None, why: str) -> None:
    """Closes a worker after the sequences of its lane have settled, at most SETTLE_S."""
    if lane is not None:
        await until(lambda: not len(lane), SETTLE_S)
    await worker.close(why)
