"""Calls to Ray: joins a cluster and runs the processes of a cell as Core actors. The controller
recreates a lost process with a new incarnation; Ray restarts only the controller.

A local cluster is a child with a session of its own, bound to loopback, with a token of its own; it
is ended by signals to exactly its processes (`process_tags.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any

import ray
import structlog
from ray.experimental import internal_kv

from deploy.actors import DsparkProcess
from deploy.autoscale import AutoscaleConfig
from deploy.config import ClusterConfig
from deploy.controller import Controller
from deploy.fleet import (
    AnotherCell,
    NobodyListens,
    NothingStarted,
    Pending,
    StartedProcess,
    StartFailed,
)
from deploy.probe import ControlAnnouncer
from deploy.reserving import Node, missing, needs, shown
from deploy.topology import ProcessRole, Replica, Topology, resized
from dspark.client.cell import Cell
from dspark.errors import ConfigError, Unavailable
from dspark.runtime.security import split_endpoint
from dspark.runtime.telemetry import configure_logging
from dspark.runtime.tls import Tls

log = structlog.get_logger("deploy.cluster")

NAMESPACE = "dspark"
CONNECT_TIMEOUT_S = 5.0
# prefixes of variables that say where models are found, for workers on other nodes
CARRIED = ("HF_", "TRANSFORMERS_")
LOCAL_JOIN_S = 120.0
CONTROLLER = "controller"
# Keys in Ray's own table: what a controller that Ray restarted goes on from, and whose that is.
AUTOSCALE, SIZES, OWNER = "autoscale", "sizes", "owner"
ASK_S = 15.0  # for an answer of the controller
# Actor name = cell, slash, replica name, separator, a random part: a dead actor's name is not free
# at once.
_SEPARATOR = "#"
LOOK_S = 3.0  # between two looks for a place


@contextlib.contextmanager
def _own_handler() -> Iterator[None]:
    """Restores our SIGTERM handler, which Ray replaces on joining and removes on leaving."""
    ours = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ours)


@_own_handler()
def connect(address: str, *, local: bool) -> None:
    """Makes this process a driver of the cluster at `address`. Raises NothingStarted."""
    _check_reachable(address)
    options: dict[str, Any] = {"_node_ip_address": "127.0.0.1"} if local else {}
    carried = {name: value for name, value in os.environ.items() if name.startswith(CARRIED)}
    if carried and not local:
        options["runtime_env"] = {"env_vars": carried}
    # A cluster of our own has only just begun to listen, so a failed join is tried again.
    deadline = time.monotonic() + (LOCAL_JOIN_S if local else 0.0)
    while True:
        try:
            ray.init(
                address=address,
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level="ERROR",
                **options,
            )
            return
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            ray.shutdown()
            if time.monotonic() > deadline:
                raise NothingStarted(
                    f"cannot join the Ray cluster at {address}: {_first_line(error)}"
                ) from error
            time.sleep(0.5)


def _check_reachable(address: str) -> None:
    """Raises NobodyListens or NothingStarted for a dead address, which Ray tries for minutes."""
    host, port = split_endpoint(address, "address")
    try:
        socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
    except ConnectionRefusedError as error:
        raise NobodyListens(f"there is no Ray cluster at {address}: {error}") from error
    except OSError as error:
        raise NothingStarted(f"cannot join the Ray cluster at {address}: {error}") from error


@_own_handler()
def disconnect() -> None:
    """Leaves the cluster; detached actors stay."""
    ray.shutdown()


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
        self._actors: dict[str, _Actor] = {}  # by the replica's name
        self._pending: dict[str, Pending] = {}

    async def adopt(self) -> dict[str, StartedProcess]:
        """Takes over an earlier controller's actors; ends those that do not answer."""
        found: dict[str, StartedProcess] = {}
        for actor in actors_of(self._cell):
            name = actor.removeprefix(f"{self._cell}/").partition(_SEPARATOR)[0]
            node = described = None
            try:
                handle = ray.get_actor(actor)
                node, _ = await asyncio.wait_for(_awaitable(handle.here.remote()), 5.0)
                described = await asyncio.wait_for(_awaitable(handle.describe.remote()), 5.0)
            except (ValueError, TimeoutError, ray.exceptions.RayError):
                described = None
            if described is None or name in found:
                with contextlib.suppress(ValueError, ray.exceptions.RayError):
                    ray.kill(ray.get_actor(actor))
                continue
            replica = replace(self._templates[ProcessRole(name.partition("/")[0])], name=name)
            self._actors[name] = _Actor(handle, replica, str(node))
            found[name] = StartedProcess(**described)
        return found

    async def launch(self, replica: Replica) -> StartedProcess:
        """Creates the actor, then starts the room in it. Raises StartFailed."""
        await self.end(replica.name, 0.0)
        title = f"{self._cell}/{replica.name}"
        handle = (
            ray.remote(DsparkProcess)
            .options(
                name=f"{title}{_SEPARATOR}{token_hex(4)}",
                namespace=NAMESPACE,
                lifetime="detached",
                num_cpus=replica.cpus,  # 0 makes Ray give torch one thread
                num_gpus=replica.gpus,
                memory=replica.memory or None,
                label_selector=dict(replica.selector),
                max_restarts=0,
            )
            .remote(title)
        )
        actor = self._actors[replica.name] = _Actor(handle, replica)
        deadline = time.monotonic() + self._timeout_s
        try:
            actor.node, node_ip = await self._await_place(handle, replica, deadline)
            told = {"name": replica.name, "secrets": self._secrets, "node_ip": node_ip}
            call = handle.start.remote(str(replica.role), dict(replica.settings), **told)
            reply = await asyncio.wait_for(_awaitable(call), max(1.0, deadline - time.monotonic()))
        except TimeoutError:
            waited = self.pending(replica.name).why or "it was still loading"
            await self.end(replica.name, 0.0)
            raise StartFailed(
                f"not serving after {self._timeout_s:.0f} s: {waited}", fatal=False
            ) from None
        except ray.exceptions.RayActorError as error:
            await self.end(replica.name, 0.0)
            raise StartFailed(
                f"its process died while starting ({_first_line(error)})", fatal=False
            ) from error
        finally:
            self._pending.pop(replica.name, None)
        if "failed" in reply:
            await self.end(replica.name, 0.0)
            raise StartFailed(reply["failed"], fatal=reply["fatal"])
        return StartedProcess(**reply)

    async def end(self, name: str, grace_s: float) -> None:
        """Drains if there is grace, then kills."""
        if (actor := self._actors.pop(name, None)) is None:
            return
        if grace_s > 0:
            with contextlib.suppress(TimeoutError, ray.exceptions.RayError):
                await asyncio.wait_for(_awaitable(actor.handle.stop.remote(grace_s)), grace_s + 2.0)
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(actor.handle, no_restart=True)

    def pending(self, name: str) -> Pending:
        """What the launch of a replica waits for."""
        return self._pending.get(name, Pending())

    async def _await_place(self, handle: Any, replica: Replica, deadline: float) -> tuple[str, str]:
        """Waits until Ray has placed the actor; returns the node's id and address, or raises
        TimeoutError. Ray does not refuse an actor that no node can hold, so `pending` reports what
        it waits for."""
        placed = asyncio.ensure_future(_awaitable(handle.here.remote()))
        try:
            return await self._placed(placed, replica, deadline)
        finally:
            placed.cancel()

    async def _placed(
        self, placed: asyncio.Future[tuple[str, str]], replica: Replica, deadline: float
    ) -> tuple[str, str]:
        short_since: float | None = None
        while True:
            done, _ = await asyncio.wait({placed}, timeout=LOOK_S)
            if done:
                return await placed
            now = time.monotonic()
            if now > deadline:
                raise TimeoutError
            held = {name: actor.node for name, actor in self._actors.items() if actor.node}
            short = missing(
                replica, [actor.replica for actor in self._actors.values()], nodes(), held
            )
            short_since = None if not short else short_since if short_since is not None else now
            overdue = short_since is not None and now - short_since >= self._place_s - LOOK_S
            self._pending[replica.name] = Pending(short or _why_pending(replica), overdue)


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


class DsparkController:
    """The cell's `Controller` as a Ray actor."""

    def __init__(
        self,
        cell_id: str,
        topology: Topology,
        secrets: Mapping[str, str],
        config: ClusterConfig,
        autoscale: AutoscaleConfig,
    ) -> None:
        configure_logging(role="controller", name=CONTROLLER, fmt="json")
        self._cell, tls = config.cell, Tls.of(config)
        said, sizes = _taken_over(self._cell, cell_id)
        if sizes is not None:
            topology = resized(topology, *map(int, sizes.split()))
        self._controller = Controller(
            topology,
            RayFleet(topology, secrets, config),
            ControlAnnouncer(secrets.get("operator_token_file"), tls),
            tls=tls,
            drain_s=config.drain_s,
            autoscale=autoscale if said is None else replace(autoscale, enabled=said == "on"),
        )
        self._controller.on_resized = lambda *sizes: _keep(
            self._cell, SIZES, " ".join(map(str, sizes))
        )
        # Started here, so that a controller that Ray restarted resumes its work by itself.
        self._loop = asyncio.get_event_loop().create_task(self._controller.run())

    def __repr__(self) -> str:
        return _controller(self._cell)

    async def report(self) -> list[dict[str, Any]]:
        """State of every replica, see `Controller.report`."""
        return self._controller.report()

    async def resize(
        self, verifiers: int | None, drafters: int | None, autoscale: bool | None
    ) -> tuple[int, int] | str:
        """Changes the sizes and the autoscaling that are given (None: unchanged). Returns the
        wanted sizes, or why they are refused."""
        now = self._controller.sizes()
        wanted = (
            now[0] if verifiers is None else verifiers,
            now[1] if drafters is None else drafters,
        )
        try:
            if (verifiers, drafters) != (None, None):
                self._controller.resize(*wanted, autoscale=autoscale)
            elif autoscale is not None:
                self._controller.follow_load(autoscale)
        except ConfigError as error:
            return str(error)
        if autoscale is not None:
            _keep(self._cell, AUTOSCALE, "on" if autoscale else "off")
        return wanted

    async def close(self, grace_s: float) -> None:
        """Ends every process of the cell."""
        await self._controller.close(grace_s)
        self._loop.cancel()


def start_controller(
    cell_id: str,
    topology: Topology,
    secrets: Mapping[str, str],
    config: ClusterConfig,
    autoscale: AutoscaleConfig,
) -> None:
    """Creates the controller. Raises NothingStarted if a cell of this name is already there."""
    actor = ray.remote(DsparkController).options(
        name=_controller(config.cell),
        namespace=NAMESPACE,
        lifetime="detached",
        num_cpus=0,
        max_restarts=-1,
    )
    try:
        handle = actor.remote(cell_id, topology, dict(secrets), config, autoscale)
    except ValueError as error:  # the name is taken
        raise NothingStarted(
            f"this Ray cluster already runs a cell named {config.cell!r}; it ends with "
            "`dspark down` of its owner; one beside it needs another name (--cell)"
        ) from error
    try:
        _get(handle.report.remote(), LOCAL_JOIN_S, "the controller did not start")
    except BaseException:  # before it has noted whose it is, nobody else could end it
        ray.kill(handle, no_restart=True)
        raise


def _controller(cell: str) -> str:
    return f"{cell}/{CONTROLLER}"


def _taken_over(cell: str, cell_id: str) -> tuple[str | None, str | None]:
    """What was last said to the controller of this very cell: its autoscaling and its sizes. What
    an earlier cell of this name left is deleted."""
    if _kept(cell, OWNER) == cell_id:  # Ray restarted it
        return _kept(cell, AUTOSCALE), _kept(cell, SIZES)
    _forget(cell)
    _keep(cell, OWNER, cell_id)
    return None, None


def _forget(cell: str) -> None:
    for what in (OWNER, AUTOSCALE, SIZES):
        internal_kv._internal_kv_del(f"{cell}/{what}", namespace=NAMESPACE)


def _kept(cell: str, what: str) -> str | None:
    said: bytes | None = internal_kv._internal_kv_get(f"{cell}/{what}", namespace=NAMESPACE)
    return None if said is None else said.decode()


def _keep(cell: str, what: str, said: str) -> None:
    try:
        internal_kv._internal_kv_put(f"{cell}/{what}", said, namespace=NAMESPACE)
    except Exception as error:  # Ray's table is away: it holds for as long as this controller
        log.warning("controller.not_kept", what=what, said=said, reason=_first_line(error))


def controller(cell: str) -> Any | None:
    """Handle of a cell's controller in this cluster; None without one."""
    try:
        return ray.get_actor(_controller(cell), namespace=NAMESPACE)
    except ValueError:
        return None


def report(cell: Cell) -> list[dict[str, Any]]:
    """The controller's report. Raises Unavailable if it is gone or does not answer, AnotherCell if
    it is another cell's."""
    rows: list[dict[str, Any]] = _asked(cell, "report")
    return rows


def resize(
    cell: Cell, verifiers: int | None, drafters: int | None, autoscale: bool | None
) -> tuple[int, int]:
    """Sends the controller new sizes, and whether they follow the load; None keeps the value.
    Returns the wanted sizes; raises ConfigError if they are refused, else as `report`."""
    wanted: tuple[int, int] | str = _asked(cell, "resize", verifiers, drafters, autoscale)
    if isinstance(wanted, str):
        raise ConfigError(wanted)
    return wanted


def close_cell(cell: Cell, grace_s: float) -> None:
    """Ends the cell's actors and the controller; other users of the cluster are left alone. Raises
    AnotherCell if what has this name is another cell's."""
    handle = _own(cell)
    if handle is not None:
        with contextlib.suppress(Unavailable):  # then its workers are killed below
            _get(handle.close.remote(grace_s), 2 * grace_s + ASK_S)
    _forget(cell.name)  # before the name is free for another cell
    if handle is not None:
        ray.kill(handle, no_restart=True)
    for actor in actors_of(cell.name):
        with contextlib.suppress(ValueError, ray.exceptions.RayError):
            ray.kill(ray.get_actor(actor), no_restart=True)


def _asked(cell: Cell, method: str, *words: object) -> Any:
    if (handle := _own(cell)) is None:
        raise Unavailable("the controller is gone")
    return _get(getattr(handle, method).remote(*words), ASK_S)


def _own(cell: Cell) -> Any | None:
    """Handle of the controller of this very cell; None without one. Names come again, ids do not:
    raises AnotherCell if the name is another cell's by now."""
    handle, owner = controller(cell.name), _kept(cell.name, OWNER)
    # It notes whose it is before it answers; before that an earlier cell's note may be there.
    if handle is not None and owner != cell.cell_id:
        _get(handle.report.remote(), ASK_S)
        owner = _kept(cell.name, OWNER)
    if owner not in (None, cell.cell_id):
        raise AnotherCell(
            f"the cell named {cell.name!r} of this Ray cluster is another one by now, and left as "
            "it is"
        )
    return handle


def _get(
    reference: Any, timeout_s: float, otherwise: str = "the controller does not answer"
) -> Any:
    try:
        return ray.get(reference, timeout=timeout_s)
    except (ray.exceptions.RayError, TimeoutError) as error:
        raise Unavailable(f"{otherwise} ({_first_line(error)})") from error


async def _awaitable(reference: Any) -> Any:
    return await reference


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
