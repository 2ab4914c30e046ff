"""The control loop of a cell: starts, watches and replaces its processes, and announces workers to
the coordinator.

It imports no Ray: a `Fleet` runs the processes. `reconcile.plan` decides; this file carries out.
Invariant: the coordinator gets the full set of serving workers again and again, so a lost message
or a restarted coordinator does no harm. A worker that is to leave is announced as draining first,
and ended when the coordinator reports that no sequence needs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from typing import Any

import structlog

from deploy import reconcile
from deploy.autoscale import AutoscaleConfig, Autoscaler
from deploy.config import ClusterConfig
from deploy.fleet import Fleet, StartedProcess, StartFailed
from deploy.load_report import LoadWindow
from deploy.probe import ControlAnnouncer, Probe
from deploy.reconcile import Observed, Phase
from deploy.service_registry import ROOMS
from deploy.topology import POOLS, WORKERS, ProcessRole, Replica, Topology, resized
from dspark.errors import ConfigError, DsparkError
from dspark.runtime.tls import Tls

log = structlog.get_logger("deploy.controller")

TICK_S = 0.5
MISSES = 2  # refused connections in a row that mean death
HUNG_AFTER_S = 20.0  # silence, or no way there, that means death
END_GRACE_S = 5.0  # for a worker that no sequence needs any more


class Controller:
    """The loop that keeps a topology running."""

    def __init__(
        self,
        topology: Topology,
        fleet: Fleet,
        announcer: ControlAnnouncer,
        config: ClusterConfig,
        autoscale: AutoscaleConfig,
    ) -> None:
        self._topology, self._fleet, self._announcer = topology, fleet, announcer
        self._tls, self._drain_s = Tls.of(config), config.drain_s
        # what starts may wait for the place of what drains
        self._within_s = config.drain_s + config.start_timeout_s
        # draining workers that the coordinator needs no more
        self._unneeded: frozenset[str] = frozenset()
        self._scaling, self._looked = autoscale, float("-inf")
        self._set_autoscaling(autoscale.enabled)
        self._seen: dict[str, Observed] = {}
        self._running: dict[str, Probe] = {}  # of each process that serves
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # of front ends: (coordinator, the process)
        self._fronts: dict[str, tuple[str, StartedProcess]] = {}

    async def run(self) -> None:
        """Adopts the processes that are there, then keeps the cell running until cancelled."""
        adopted = False
        while True:
            try:
                if not adopted:
                    await self._adopt()
                    adopted = True
                await self.step()
            except Exception:  # one bad tick must not end the watch
                log.exception("controller.tick_failed")
            await asyncio.sleep(TICK_S)

    async def _adopt(self) -> None:
        """Takes over what an earlier controller left; called again after it raised."""
        left = await self._fleet.adopt()
        # the coordinator first, as front ends are known by theirs
        for name in sorted(left, key=lambda name: name != self._topology.coordinator.name):
            if name not in self._running:
                started = left[name]
                self._serve(name, reconcile.starting(None, time.monotonic()), started)
                log.info("replica.adopted", replica=name, endpoint=started.endpoint)

    async def step(self) -> None:
        """One tick: probes, decides, acts, announces, and lets the pools follow the load."""
        names = list(self._running)
        found = await asyncio.gather(*map(self._watch, names), return_exceptions=True)
        for name, error in zip(names, found, strict=True):
            if error is not None:  # a bug in one watch must not end the others
                log.error("replica.not_watched", replica=name, exc_info=error)
        await self._follow_coordinator()
        starts, stops = reconcile.plan(self._topology.names, self._seen, time.monotonic())
        for name in starts:
            self._begin(name)
        for name in stops:
            self._seen[name] = reconcile.stopping(self._seen[name])
            self._tasks[name] = asyncio.create_task(self._stop(name, self._tasks.get(name)))
        await self._announce()
        await self._follow_load()

    def sizes(self) -> tuple[int, int]:
        """The wanted (verifiers, drafters)."""
        return self._topology.sizes[ProcessRole.VERIFY], self._topology.sizes[ProcessRole.DRAFT]

    def resize(
        self, verifiers: int | None, drafters: int | None, autoscale: bool | None = None
    ) -> tuple[int, int, float]:
        """Changes the wanted sizes of the pools, and whether they follow the load (None:
        unchanged); the loop does the rest. Returns the wanted sizes and the seconds that they may
        take. Raises ConfigError for sizes that are refused, and changes nothing then."""
        sized = (verifiers, drafters) != (None, None)
        now = self.sizes()
        verifiers = now[0] if verifiers is None else verifiers
        drafters = now[1] if drafters is None else drafters
        if sized:
            if self._autoscaler is not None if autoscale is None else autoscale:
                self._check_bounds(verifiers=verifiers, drafters=drafters)
            wanted = resized(self._topology, verifiers, drafters).replicas
            if refused := self._fleet.misfit(wanted.values()):
                raise ConfigError(refused)
            self._resize(verifiers, drafters, "asked for")
        if autoscale is not None:
            self._set_autoscaling(autoscale)
        if sized and self._autoscaler is not None:
            self._autoscaler.rest(time.monotonic())
        return verifiers, drafters, self._within_s

    def _check_bounds(self, **sizes: int) -> None:
        for pool, size in sizes.items():
            least, most = self._scaling.bounds[pool]
            if not least <= size <= most:  # autoscaling would undo it at its next look
                kept = f"autoscaling keeps {least} to {most} (section autoscale)"
                raise ConfigError(f"scale: {size} {pool}, while {kept}")

    def _set_autoscaling(self, on: bool) -> None:
        self._autoscaler = Autoscaler(self._scaling) if on else None
        self._window = LoadWindow(self._scaling.window_s)
        log.info("autoscale.set", on=on)
        self.keep(self.sizes(), on)

    def _resize(self, verifiers: int, drafters: int, why: str) -> None:
        self._topology = resized(self._topology, verifiers, drafters)
        log.info("cell.resized", verifiers=verifiers, drafters=drafters, why=why)
        self.keep((verifiers, drafters), self._autoscaler is not None)

    def keep(self, sizes: tuple[int, int], autoscales: bool) -> None:
        """Called with the wanted sizes, and whether they follow the load, from the beginning on and
        when either changes; a successor needs both."""

    def report(self) -> list[dict[str, Any]]:
        """Every replica as plain values, those that leave too, for `dspark up` and for people."""
        rows, wanted = [], self._topology.replicas
        for name in (*wanted, *sorted(self._seen.keys() - wanted.keys())):
            seen = self._seen.get(name) or Observed(Phase.DOWN, time.monotonic())
            if name not in wanted:  # from the first word on
                seen = reconcile.stopping(seen)
            probe = self._running.get(name)
            started = probe.process if probe else StartedProcess("", 0, 0)
            rows.append(
                {
                    "name": name,
                    "phase": str(seen.phase),
                    "reason": seen.waits or seen.reason,
                    "unplaced": seen.unplaced,
                    "fatal": seen.fatal,
                    "failures": seen.failures,
                    "endpoint": started.endpoint,
                    "http": started.http,
                    "pid": started.pid,
                }
            )
        return rows

    async def close(self, grace_s: float) -> None:
        """Ends every process, once `run` has ended: front ends, the coordinator, then workers, so
        that streams end before the processes that feed them."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        names = sorted(self._seen)
        for roles in ((ProcessRole.FRONTEND,), (ProcessRole.COORDINATOR,), POOLS):
            ends = [self._fleet.end(name, grace_s) for name in names if _role(name) in roles]
            await asyncio.gather(*ends, return_exceptions=True)
        await asyncio.gather(
            *(probe.close() for probe in self._running.values()), return_exceptions=True
        )

    def _begin(self, name: str) -> None:
        replica = self._topology.replicas[name]
        if replica.role is ProcessRole.FRONTEND:
            if self._topology.coordinator.name not in self._running:
                return  # no coordinator to attach to; the next tick tries again
            replica = self._placed(replica)
        self._seen[name] = reconcile.starting(self._seen.get(name), time.monotonic())
        log.info("replica.starting", replica=name, failures=self._seen[name].failures)
        self._tasks[name] = asyncio.create_task(self._launch(replica))

    async def _launch(self, replica: Replica) -> None:
        name, seen = replica.name, self._seen[replica.name]

        def waits(why: str, unplaced: bool) -> None:
            self._seen[name] = replace(self._seen[name], waits=why, unplaced=unplaced)

        try:
            started = await self._fleet.launch(replica, waits)
            self._serve(name, seen, started)
            log.info("replica.serving", replica=name, endpoint=started.endpoint, pid=started.pid)
            return
        except StartFailed as error:
            self._fronts.pop(name, None)  # its former ports may be taken
            reason, fatal = str(error), error.fatal
            log.error("replica.start_failed", replica=name, reason=reason, fatal=fatal)
        except Exception as error:
            reason, fatal = f"{type(error).__name__}: {error}", False
            log.exception("replica.start_failed", replica=name)
        await self._fleet.end(name, 0.0)  # it may have started all the same
        self._seen[name] = reconcile.down(seen, time.monotonic(), reason, fatal=fatal)

    def _serve(self, name: str, seen: Observed, started: StartedProcess) -> None:
        role = _role(name)
        # raises for unreadable certificates: no process serves without a probe
        self._running[name] = Probe(started, ROOMS[role].service, self._tls)
        self._seen[name] = reconcile.serving(seen, time.monotonic())
        coordinator = self._running.get(self._topology.coordinator.name)
        if role is ProcessRole.FRONTEND:
            # one that is adopted without its coordinator follows the next one
            its = coordinator.process.endpoint if coordinator is not None else ""
            self._fronts[name] = (its, started)

    def _placed(self, replica: Replica) -> Replica:
        """The front end with the coordinator's endpoint in its settings, and with its former ports,
        where its clients look for it."""
        settings = {
            **replica.settings,
            "coordinator": self._running[self._topology.coordinator.name].process.endpoint,
        }
        if replica.name in self._fronts:
            _, former = self._fronts[replica.name]
            for key, at in (("bind", former.endpoint), ("http", former.http)):
                if at:
                    port = at.rpartition(":")[2]
                    settings[key] = f"{settings[key].rpartition(':')[0]}:{port}"
        return replace(replica, settings=settings)

    async def _follow_coordinator(self) -> None:
        """Restarts front ends whose coordinator has come back at another endpoint."""
        coordinator = self._running.get(self._topology.coordinator.name)
        if coordinator is None:
            return
        for name in [name for name in self._fronts if name in self._running]:
            if self._fronts[name][0] != (now := coordinator.process.endpoint):
                log.warning("frontend.follows", replica=name, coordinator=now)
                await self._lost(name, "the coordinator has moved")

    async def _watch(self, name: str) -> None:
        probe = self._running.get(name)
        if probe is None or self._seen[name].phase is not Phase.SERVING:
            return  # a replica that is being stopped may refuse
        await probe.look()
        if probe.misses >= MISSES or time.monotonic() - probe.heard > HUNG_AFTER_S:
            reason = (
                "refuses connections"
                if probe.misses >= MISSES
                else f"silent for {HUNG_AFTER_S:.0f} s"
            )
            log.warning("replica.lost", replica=name, reason=reason, pid=probe.process.pid)
            await self._lost(name, reason)

    async def _lost(self, name: str, reason: str) -> None:
        await self._fleet.end(name, 0.0)
        await self._forget(name)
        self._seen[name] = reconcile.down(self._seen[name], time.monotonic(), reason)

    async def _stop(self, name: str, start: asyncio.Task[None] | None) -> None:
        """Ends a replica that is not wanted. It may first finish what it has, and stays if it is
        wanted again by then. start: the task of its last start, which may still be waiting for a
        place."""
        began = time.monotonic()
        if start is not None:
            start.cancel()
            await asyncio.wait({start})
        if runs := name in self._running:
            over = began + self._drain_s
            while name not in self._unneeded | self._topology.names and time.monotonic() < over:  # noqa: ASYNC110  every tick may end it
                await asyncio.sleep(TICK_S)
            if name in self._topology.names:  # wanted again while it drained
                log.info("replica.stays", replica=name)
                self._running[name].heard = time.monotonic()
                self._seen[name] = replace(self._seen[name], phase=Phase.SERVING)
                return
        idle = not runs or name in self._unneeded
        await self._forget(name)
        if not idle:
            await self._announce()  # without it, so that its sequences move before it ends
        log.info(
            "replica.leaves", replica=name, idle=idle, drained_s=round(time.monotonic() - began, 2)
        )
        # without a place it could not hear that it is to end
        await self._fleet.end(name, END_GRACE_S if runs else 0.0)
        del self._seen[name]

    async def _forget(self, name: str) -> None:
        probe = self._running.pop(name, None)
        self._unneeded -= {name}  # the next process of this name is another worker
        if probe is not None:
            with contextlib.suppress(Exception):  # a broken channel may refuse to close in order
                await probe.close()

    async def _announce(self) -> None:
        coordinator = self._running.get(self._topology.coordinator.name)
        if coordinator is None:
            return
        workers = {
            name: (_role(name), probe.process)
            for name, probe in sorted(self._running.items())
            if name.startswith(WORKERS)
        }
        # A worker drains from the moment it is not wanted: dropped at once, it would abandon its
        # sequences.
        draining = workers.keys() - self._topology.names
        try:
            self._unneeded = await self._announcer.announce(coordinator.process, workers, draining)
        except DsparkError as error:  # the next tick tries again
            log.warning("announce.failed", reason=str(error))

    async def _follow_load(self) -> None:
        """Lets the autoscaler look at the cell now and then; nothing is decided while replicas
        start or leave."""
        scaler, now = self._autoscaler, time.monotonic()
        coordinator = self._running.get(self._topology.coordinator.name)
        if scaler is None or coordinator is None or now - self._looked < scaler.config.look_s:
            return
        self._looked = now
        try:
            self._window.add(now, await self._announcer.status(coordinator.process))
        except DsparkError as error:
            log.warning("autoscale.no_status", reason=str(error))
            return
        settled = self._seen.keys() == self._topology.names and all(
            seen.phase is Phase.SERVING for seen in self._seen.values()
        )
        if not settled:
            scaler.forget()
            self._give_back(scaler, now)
            # readings of other sizes say nothing about these
            self._window = LoadWindow(self._scaling.window_s)
        if self._window.span_s <= 0:
            return
        sizes = self.sizes()
        wanted = scaler.look(self._window.reading(), *sizes, now)
        if wanted != sizes:
            self._resize(*wanted, "; ".join(f"{pool}: {why}" for pool, why in scaler.why.items()))

    def _give_back(self, scaler: Autoscaler, now: float) -> None:
        """Shrinks pools that grew by themselves beyond what the nodes can hold."""
        sizes = [self._held(role, size) for role, size in zip(POOLS, self.sizes(), strict=True)]
        if tuple(sizes) != self.sizes() and sizes[0]:
            self._resize(sizes[0], sizes[1], "no node can hold more")
            scaler.rest(now)

    def _held(self, role: ProcessRole, size: int) -> int:
        while size and (seen := self._seen.get(f"{role}/{size - 1}")) and seen.unplaced:
            size -= 1
        return size


def _role(name: str) -> ProcessRole:
    return ProcessRole(name.partition("/")[0])
