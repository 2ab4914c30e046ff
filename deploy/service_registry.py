"""The table of each room's configuration and entry point.

Everything is imported when it is needed: configurations are light, `process` may load torch.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.topology import ProcessRole
from dspark.runtime.process import collect_rarely, keep_to

if TYPE_CHECKING:
    from dspark.runtime.shell import ShellProcess


@dataclass(frozen=True)
class ServiceProcess:
    """A room that runs as a process. service: full name of the gRPC service to probe."""

    package: str
    config: str
    service: str


ROOMS = {
    ProcessRole.COORDINATOR: ServiceProcess(
        "coordinator", "CoordinatorConfig", "dspark.wire.v1.Generation"
    ),
    ProcessRole.VERIFY: ServiceProcess("verify_service", "VerifyConfig", "dspark.wire.v1.Verify"),
    ProcessRole.FRONTEND: ServiceProcess(
        "coordinator.frontend", "FrontendConfig", "dspark.wire.v1.Generation"
    ),
    ProcessRole.DRAFT: ServiceProcess("draft_service", "DraftConfig", "dspark.wire.v1.Draft"),
}


def config_class(role: ProcessRole) -> type[Any]:
    """The room's frozen configuration class."""
    room = ROOMS[role]
    found: type[Any] = getattr(
        importlib.import_module(f"{room.package.split('.')[0]}.config"), room.config
    )
    return found


def load_settings(
    role: ProcessRole,
    *,
    file: str | Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object],
) -> dict[str, Any]:
    """The room's resolved configuration as plain values. Flags without a key in the room are left
    out."""
    from dspark.runtime.config import load_config

    cls = config_class(role)
    known = {field.name for field in dataclasses.fields(cls)}
    mine = {key: value for key, value in flags.items() if key in known}
    config = load_config(cls, section=str(role), file=file, environ=environ, flags=mine)
    return {name: getattr(config, name) for name in known}


def check_room(role: ProcessRole, settings: Mapping[str, Any]) -> None:
    """Raises ConfigError for settings that the room itself would refuse, before it loads
    anything."""
    importlib.import_module(f"{ROOMS[role].package}.process").check(config_class(role)(**settings))


async def start_room(role: ProcessRole, settings: Mapping[str, Any], *, name: str) -> ShellProcess:
    """Runs the room in this process, on the running event loop."""
    keep_to(settings.get("cpus") or "", f"{role}.cpus")  # first: threads inherit it
    process = importlib.import_module(f"{ROOMS[role].package}.process")
    started: ShellProcess = await process.start(config_class(role)(**settings), name=name)
    collect_rarely()
    return started
