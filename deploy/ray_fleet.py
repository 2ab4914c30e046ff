"""The processes of a cell as Core actors of a Ray cluster: adopted, launched, waited for, ended."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any

import ray

from deploy.actors import DsparkProcess
from deploy.config import ClusterConfig
from deploy.fleet import StartedProcess, StartFailed, Waits
from deploy.ray_table import NAMESPACE
from deploy.reserving import Node, misfit, missing, needs, shown
from deploy.topology import ProcessRole, Replica, Topology
from dspark.errors import in_short

# Actor name = cell, slash, replica name, separator, a random part: a dead actor's name is not free
# at once.
_SEPARATOR = "#"
LOOK_S = 3.0  # between two looks for a place


@dataclass
class _Actor:
    """The actor of one replica. node: id of its node, empty until Ray has placed it."""

    handle: Any
    replica: Replica
    node: str = ""


class RayFleet:
    """Runs the processes of a cell as detached actors of this cluster."""

    def __init__(
        self, topology: Topology, secrets: Mapping[str, str], config: ClusterConfig
    ) -> None:
        self._cell, self._templates, self._secrets = config.cell, topology.templates, dict(secrets)
        self._timeout_s, self._place_s = config.start_timeout_s, config.place_timeout_s
        self._own_cluster = config.address is None
        self._actors: dict[str, _Actor] = {}  # by the replica's name

    async def adopt(self) -> dict[str, StartedProcess]:
        """Takes over an earlier controller's actors; ends those that do not answer."""
        found: dict[str, StartedProcess] = {}
        for actor in actors_of(self._cell):
            name = actor.removeprefix(f"{self._cell}/").partition(_SEPARATOR)[0]
            described = None
            with contextlib.suppress(ValueError, TimeoutError, ray.exceptions.RayError):
                handle = ray.get_actor(actor)
                node = await asyncio.wait_for(handle.here.remote(), 5.0)
                described = await asyncio.wait_for(handle.describe.remote(), 5.0)
            if described is None or name in found:
                with contextlib.suppress(ValueError, ray.exceptions.RayError):
                    ray.kill(ray.get_actor(actor))
                continue
            replica = replace(self._templates[ProcessRole(name.partition("/")[0])], name=name)
            self._actors[name] = _Actor(handle, replica, node)
            found[name] = StartedProcess(**described)
        return found

    async def launch(self, replica: Replica, waits: Waits) -> StartedProcess:
        """Creates the actor, then starts the room in it. Raises StartFailed."""
        title, asked = f"{self._cell}/{replica.name}", needs(replica)
        handle = (
            ray.remote(DsparkProcess)
            .options(
                name=f"{title}{_SEPARATOR}{token_hex(4)}",
                namespace=NAMESPACE,
                lifetime="detached",
                num_cpus=asked.get("CPU", 0),  # 0 makes Ray give torch one thread
                num_gpus=asked.get("GPU", 0),
                memory=asked.get("memory"),
                label_selector=dict(replica.selector),
                max_restarts=0,
            )
            .remote(title)
        )
        actor = self._actors[replica.name] = _Actor(handle, replica)
        deadline = time.monotonic() + self._timeout_s
        try:
            actor.node = await self._await_place(actor, deadline, waits)
            waits("", False)  # from here on it is loading
            told = {"name": replica.name, "secrets": self._secrets}
            call = handle.start.remote(str(replica.role), dict(replica.settings), **told)
            reply = await asyncio.wait_for(call, max(1.0, deadline - time.monotonic()))
        except TimeoutError as error:
            waited = str(error) or "it was still loading"
            raise StartFailed(
                f"not serving after {self._timeout_s:.0f} s: {waited}", fatal=False
            ) from None
        except ray.exceptions.RayActorError as error:
            raise StartFailed(
                f"its process died while starting ({in_short(error)})", fatal=False
            ) from error
        if "failed" in reply:
            raise StartFailed(reply["failed"], fatal=reply["fatal"])
        return StartedProcess(**reply)

    async def end(self, name: str, grace_s: float) -> None:
        """Drains if there is grace, then kills."""
        if (actor := self._actors.pop(name, None)) is None:
            return
        if grace_s > 0:
            with contextlib.suppress(TimeoutError, ray.exceptions.RayError):
                await asyncio.wait_for(actor.handle.stop.remote(grace_s), grace_s + 2.0)
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(actor.handle, no_restart=True)

    def misfit(self, replicas: Collection[Replica]) -> str:
        """On a cluster that is joined nothing is refused beforehand: nodes may come on demand."""
        return misfit(replicas, nodes()) if self._own_cluster else ""

    async def _await_place(self, actor: _Actor, deadline: float, waits: Waits) -> str:
        """Waits until Ray has placed the actor; returns the node's id, or raises TimeoutError with
        what it waited for. Ray does not refuse an actor that no node can hold."""
        placed: asyncio.Future[str] = asyncio.ensure_future(actor.handle.here.remote())
        short_since, why = None, ""
        try:
            while not (await asyncio.wait({placed}, timeout=LOOK_S))[0]:
                if (now := time.monotonic()) > deadline:
                    raise TimeoutError(why)
                held = {name: each.node for name, each in self._actors.items() if each.node}
                everybody = [each.replica for each in self._actors.values()]
                short = missing(actor.replica, everybody, nodes(), held)
                short_since = None if not short else now if short_since is None else short_since
                overdue = short_since is not None and now - short_since >= self._place_s - LOOK_S
                why = short or _why_pending(actor.replica)
                waits(why, overdue)
            return await placed
        finally:
            placed.cancel()


def nodes() -> list[Node]:
    """Living nodes of the cluster."""
    return [
        Node(each["NodeID"], each["Resources"], each.get("Labels") or {})
        for each in ray.nodes()
        if each["Alive"]
    ]


def actors_of(cell: str) -> list[str]:
    """Names of the actors of a cell's processes."""
    return [
        name
        for name in ray.util.list_named_actors()
        if name.startswith(f"{cell}/") and _SEPARATOR in name
    ]


def _why_pending(replica: Replica) -> str:
    """Why a replica waits that some node could hold."""
    free = ray.available_resources()
    busy = [
        shown(kind, amount)
        for kind, amount in needs(replica).items()
        if free.get(kind, 0.0) < amount
    ]
    if busy:
        return f"waiting for {' and '.join(busy)}, which others hold"
    return "waiting for Ray to start a worker process"
