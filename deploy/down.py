"""Taking a cell down: everything it started ends, detached actors included, and the state file goes last."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from deploy.head import Head, stop_head
from dspark.client import NoCell, find_cell
from dspark.client.cell import Cell, cell_file, remove_cell
from dspark.errors import DsparkError

Say = Callable[[str], None]

GRACE_S = 5.0


def take_down(say: Say) -> None:
    """Ends the cell of the state folder. Fine when there is none."""
    try:
        cell = find_cell()
    except NoCell as error:
        if cell_file().exists():
            remove_cell()
            say(f"cleared an unusable state file: {error}")
        else:
            say("nothing is up")
        return
    if cell.ray_pid:
        left = stop_head(Head(cell.ray_address, cell.ray_pid, Path(cell.ray_dir), cell.cell_id))
        if left:
            raise DsparkError(f"processes {left} would not end; end them and run `dspark down` again")
    else:
        close_remote(cell, say)
    remove_cell()
    say(f"down: {cell.endpoint}")


def close_remote(cell: Cell, say: Say) -> None:
    """Removes the cell's actors from a Ray cluster that others run; the cluster itself is left as it is."""
    from deploy import cluster

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        cluster.connect(cell.ray_address, local=False)
    except DsparkError as error:
        say(f"{error}; with the cluster its actors are gone too")
        return
    try:
        cluster.close_cell(GRACE_S)
    finally:
        cluster.disconnect()
