"""Calls to Ray: joins a cluster, starts a cell's controller in it as an actor, and asks it. Ray
restarts the controller alone; the controller recreates a lost process with a new incarnation.

A local cluster is a child with a session of its own, bound to loopback, with a token of its own; it
is ended by signals to exactly its processes (`process_tags.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import ray

from deploy.autoscale import AutoscaleConfig
from deploy.config import ClusterConfig
from deploy.controller import Controller
from deploy.fleet import AnotherCell, NoAnswer, NothingStarted
from deploy.probe import ControlAnnouncer
from deploy.ray_fleet import RayFleet, actors_of
from deploy.ray_fleet import nodes as nodes
from deploy.ray_table import NAMESPACE, forget, keep, kept
from deploy.topology import Topology, resized
from dspark.client.cell import Cell
from dspark.errors import ConfigError, Unavailable, in_short
from dspark.runtime.telemetry import configure_logging
from dspark.runtime.tls import Tls

# prefixes of variables that say where models are found, for workers on other nodes
CARRIED = ("HF_", "TRANSFORMERS_")
LOCAL_JOIN_S = 120.0
CONTROLLER = "controller"
ASK_S = 15.0  # for an answer of the controller


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
                    f"cannot join the Ray cluster at {address}: {in_short(error)}"
                ) from error
            time.sleep(0.5)


@_own_handler()
def disconnect() -> None:
    """Leaves the cluster; detached actors stay."""
    ray.shutdown()


class DsparkController(Controller):
    """The cell's controller as a Ray actor."""

    def __init__(
        self,
        cell_id: str,
        topology: Topology,
        secrets: Mapping[str, str],
        config: ClusterConfig,
        autoscale: AutoscaleConfig,
    ) -> None:
        configure_logging(role="controller", name=CONTROLLER, fmt="json")
        self._cell, self._cell_id = config.cell, cell_id
        said = kept(self._cell)
        if said.get("owner") == cell_id:  # Ray restarted it
            topology = resized(topology, *said["sizes"])
            autoscale = replace(autoscale, enabled=said["autoscale"])
        else:
            forget(self._cell)  # what an earlier cell of this name left
        announcer = ControlAnnouncer(secrets.get("operator_token_file"), Tls.of(config))
        fleet = RayFleet(topology, secrets, config)
        super().__init__(topology, fleet, announcer, config, autoscale)
        # Started here, so that a controller that Ray restarted resumes its work by itself.
        self._loop = asyncio.get_event_loop().create_task(self.run())

    def __repr__(self) -> str:
        return _controller(self._cell)

    def keep(self, sizes: tuple[int, int], autoscales: bool) -> None:
        keep(self._cell, owner=self._cell_id, sizes=sizes, autoscale=autoscales)

    async def close(self, grace_s: float) -> None:
        """Ends every process of the cell."""
        self._loop.cancel()
        await asyncio.wait({self._loop})
        await super().close(grace_s)


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


def controller(cell: str) -> Any | None:
    """Handle of a cell's controller in this cluster; None without one."""
    try:
        return ray.get_actor(_controller(cell), namespace=NAMESPACE)
    except ValueError:
        return None


def report(cell: Cell) -> list[dict[str, Any]]:
    """The controller's report. Raises Unavailable if it is gone, NoAnswer if it does not answer,
    AnotherCell if it is another cell's."""
    rows: list[dict[str, Any]] = _asked(cell, "report")
    return rows


def resize(
    cell: Cell, verifiers: int | None, drafters: int | None, autoscale: bool | None
) -> tuple[int, int, float]:
    """Sends the controller new sizes, and whether they follow the load; None keeps the value.
    Returns the wanted sizes and the seconds that they may take; raises ConfigError if they are
    refused, else as `report`."""
    wanted: tuple[int, int, float] = _asked(cell, "resize", verifiers, drafters, autoscale)
    return wanted


def close_cell(cell: Cell, grace_s: float) -> None:
    """Ends the cell's actors and the controller; other users of the cluster are left alone. Raises
    AnotherCell if what has this name is another cell's."""
    handle = _own(cell)
    if handle is not None:
        with contextlib.suppress(Unavailable):  # then its workers are killed below
            _get(handle.close.remote(grace_s), 2 * grace_s + ASK_S)
    forget(cell.name)  # before the name is free for another cell
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
    handle, owner = controller(cell.name), kept(cell.name).get("owner")
    # It notes whose it is before it answers; before that an earlier cell's note may be there.
    if handle is not None and owner != cell.cell_id:
        _get(handle.report.remote(), ASK_S)
        owner = kept(cell.name).get("owner")
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
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ConfigError):
            raise error.cause from None
        raise Unavailable(f"the controller failed: {in_short(error)}") from error
    except (ray.exceptions.RayError, TimeoutError) as error:
        raise NoAnswer(f"{otherwise} ({in_short(error)})") from error
