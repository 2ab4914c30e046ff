"""The class that runs inside a Ray actor: a thin shell around one room's process. It is a plain
class; `ray_fleet.py` makes it an actor.

The room keeps its own gRPC server, so no request passes through the shell. Arguments and results
are plain values.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray

from deploy.service_registry import start_room
from deploy.topology import ProcessRole
from dspark.errors import DsparkError
from dspark.runtime.addresses import EVERYWHERE, join_endpoint, split_endpoint
from dspark.runtime.identity import DEFAULT_CELL, put_token, state_dir
from dspark.runtime.shell import ShellProcess
from dspark.runtime.telemetry import configure_logging


class DsparkProcess:
    """Hosts one process of the cell. title: its name in Ray's tools."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._process: ShellProcess | None = None

    def __repr__(self) -> str:
        return self._title

    async def here(self) -> str:
        """Returns the id of the actor's node, as soon as Ray has placed the actor."""
        return str(ray.get_runtime_context().get_node_id())

    async def start(
        self, role: str, settings: Mapping[str, Any], *, name: str, secrets: Mapping[str, str]
    ) -> dict[str, Any]:
        """Starts the room. Returns its description, as `describe` does, or {"failed": sentence,
        "fatal": whether another try is useless}."""
        configure_logging(role=role, name=name, fmt="json")
        try:
            self._process = await start_room(
                ProcessRole(role), _at_hand(settings, secrets), name=name
            )
        except DsparkError as error:
            return {"failed": str(error), "fatal": True}
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}", "fatal": False}
        return await self.describe()

    async def describe(self) -> dict[str, Any]:
        """Endpoint, incarnation, pid and HTTP URL of the process; fails when it has not started."""
        assert self._process is not None
        scheme, _, at = (self._process.http_url or "").partition("://")
        return {
            "endpoint": _reachable(self._process.endpoint),
            "incarnation": self._process.incarnation,
            "pid": os.getpid(),
            "http": f"{scheme}://{_reachable(at)}" if at else "",
        }

    async def stop(self, grace_s: float) -> None:
        """Drains and ends the room."""
        if self._process is not None:
            process, self._process = self._process, None
            await process.stop(grace_s)


def _reachable(endpoint: str) -> str:
    """The endpoint, with the node's address in place of a host that means all interfaces."""
    host, port = split_endpoint(endpoint)
    node = ray.util.get_node_ip_address()
    return join_endpoint(node, port) if host in EVERYWHERE else endpoint


def _at_hand(settings: Mapping[str, Any], secrets: Mapping[str, str]) -> dict[str, Any]:
    """The settings with the path of every secret's file on this node. Writes a file here where the
    state folder is another node's, or holds another secret from an earlier cell."""
    mine = dict(settings)
    for key, secret in secrets.items():
        wanted = mine.get(key)
        if not wanted or _holds(Path(wanted), secret):
            continue
        path = state_dir() / f"{settings.get('cell', DEFAULT_CELL)}.{Path(wanted).name}"
        put_token(path, secret)
        mine[key] = str(path)
    return mine


def _holds(path: Path, secret: str) -> bool:
    try:
        return path.read_text(encoding="ascii").strip() == secret
    except (OSError, UnicodeDecodeError):
        return False
