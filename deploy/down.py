"""Taking a cell down: everything it started ends, detached actors included, and the state file goes last."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from deploy import ray_environment
from deploy.head import Head, stop_head
from deploy.marks import end_all, has_marks, marked
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
        if not cell_file().exists():
            say("nothing is up")
            return
        _end_unreadable()
        remove_cell()
        say(f"cleared an unusable state file: {error}")
        return
    if cell.ray_pid:
        left = stop_head(Head(cell.ray_address, own(cell.ray_pid, cell.cell_id), Path(cell.ray_dir), cell.cell_id))
        if left:
            raise DsparkError(f"processes {left} would not end; end them and run `dspark down` again")
    else:
        close_remote(cell, say)
    remove_cell()
    say(f"down: {cell.endpoint}")


def _end_unreadable() -> None:
    """Ends what a state file of another version or a damaged one still names."""
    try:
        content = json.loads(cell_file().read_text(encoding="utf-8"))
        cell_id, leader = str(content["cell_id"]), int(content["ray_pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    end_all(cell_id, own(leader, cell_id))


def own(leader: int, cell_id: str) -> int:
    """The leader's process id if it is still the cell's, else 0: ids are given away again."""
    return leader if not has_marks() or leader in marked(cell_id) else 0


def close_remote(cell: Cell, say: Say) -> None:
    """Removes the cell's actors from a Ray cluster that others run; the cluster itself is left as it is."""
    ray_environment.prepare(os.environ)
    from deploy import cluster

    try:
        cluster.connect(cell.ray_address, local=False)
    except cluster.NobodyListens as error:  # any other failure is the user's to mend, and the state file stays
        say(f"{error}; with the cluster its actors are gone too")
        return
    try:
        cluster.close_cell(GRACE_S)
    finally:
        cluster.disconnect()
