"""`dspark ray -- WORDS`: Ray's own commands against the cluster of this state folder's cell. Does not import ray."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from deploy import ray_environment
from deploy.head import environment
from dspark.client import find_cell
from dspark.client.cell import Cell
from dspark.errors import ConfigError, DsparkError
from dspark.runtime.identity import state_dir

# They end every Ray process of the machine, whoever's it is.
REFUSED = ("stop", "symmetric-run", "down", "kill-random-node")
ASK_DASHBOARD = ("list", "get", "summary", "logs", "job")


def run(words: Sequence[str]) -> int:
    """Runs one command and returns its exit code."""
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        raise ConfigError("ray: say which of Ray's commands, as in `dspark ray -- status`")
    if words[0] in REFUSED:
        raise ConfigError(f"ray: `ray {words[0]}` ends what is not this cell's; `dspark down` ends the cell")
    cell = find_cell()
    if words[0] in ASK_DASHBOARD and cell.ray_pid and not cell.dashboard:
        raise DsparkError(f"`ray {words[0]}` asks Ray's dashboard, which `dspark up --dashboard` would have started")
    command = [sys.executable, "-m", "ray.scripts.scripts", *words]
    return subprocess.run(command, env=variables(cell, os.environ), check=False).returncode


def variables(cell: Cell, environ: Mapping[str, str]) -> dict[str, str]:
    """What Ray's programs read: where the cluster is, and how to be let in."""
    mine = dict(environ)
    if cell.ray_pid:
        mine |= environment(state_dir() / "ray_token", cell.cell_id)
    ray_environment.say_auth(mine)
    mine["RAY_ADDRESS"] = cell.ray_address
    if cell.dashboard:
        mine["RAY_API_SERVER_ADDRESS"] = cell.dashboard
    return mine
