"""Changing the sizes of the two pools of a running cell, each by itself; returns when the new sizes serve."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from deploy import ray_environment
from deploy.awaiting import await_lanes, await_replicas
from deploy.head import environment
from dspark.client import find_cell
from dspark.errors import ConfigError
from dspark.runtime.identity import state_dir

TIMEOUT_S = 600.0


def scale(
    verifiers: int | None, drafters: int | None, autoscale: bool | None, say: Callable[[str], None]
) -> tuple[int, int]:
    """Resizes the cell of the state folder; None leaves a pool as it is. Returns the sizes in force.

    Workers that leave get nothing new and are waited for; see `leaving`.
    """
    if (verifiers is not None and verifiers < 1) or (drafters is not None and drafters < 0):
        raise ConfigError("scale: a cell needs at least one verifier, and no pool can be negative")
    cell = find_cell()
    local = bool(cell.ray_pid)
    if local:
        os.environ.update(environment(state_dir() / "ray_token", cell.cell_id))
    ray_environment.prepare(os.environ)
    from deploy import cluster

    cluster.connect(cell.ray_address, local=local)
    try:
        wanted = cluster.resize(cell.name, verifiers, drafters, autoscale)
        deadline = time.monotonic() + TIMEOUT_S
        if (verifiers, drafters) != (None, None):
            await_replicas(lambda: cluster.report(cell.name), deadline, say)
            await_lanes(cell, *wanted, deadline, say)
    finally:
        cluster.disconnect()
    return wanted
