"""Waits until a cell serves, and reports every change and now and then what is still pending."""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from dataclasses import replace
from typing import Any

from deploy.down import Say, operating
from deploy.fleet import NoAnswer
from deploy.ray_environment import joined
from deploy.topology import WORKERS, ProcessRole
from dspark.client import CellStatus, Client, find_cell
from dspark.client.cell import Cell, write_cell
from dspark.errors import DsparkError, Unavailable, WrongCommand

POLL_S = 0.1
REMIND_EVERY_S = 10.0
RESTART_S = 60.0  # longest time that a controller may take to answer, as Ray may restart it
GIVE_UP_AFTER_FAILURES = 3  # of one replica, none of them fatal
Report = Callable[[], list[dict[str, Any]]]  # of a controller
LATE = "the coordinator is up but not connected in time:"


def until_nothing(
    pending: Callable[[], str], late: str, deadline: float, say: Say = lambda _: None
) -> None:
    """Waits until `pending` returns an empty string. Past `deadline` it raises Unavailable with
    `late` and what is pending. A controller that does not answer may come back."""
    reminded = time.monotonic()
    while True:
        try:
            found = pending()
        except NoAnswer as error:
            found = str(error)
        if not found:
            return
        now = time.monotonic()
        if now > deadline:
            raise Unavailable(f"{late} {found}")
        if now - reminded > REMIND_EVERY_S:
            reminded = now
            say(f"still waiting: {found}")
        time.sleep(POLL_S)


def await_replicas(report: Report, deadline: float, say: Say) -> list[dict[str, Any]]:
    """Waits until every replica serves; reports every change, and now and then what is pending.
    Returns the last report; raises Unavailable when one cannot start, be placed or serve in
    time."""
    shown: dict[str, str] = {}
    rows: list[dict[str, Any]] = []

    def pending() -> str:
        rows[:] = report()
        for row in rows:
            failing = row["fatal"] or row["failures"] >= GIVE_UP_AFTER_FAILURES
            if failing and row["phase"] == "down":  # a replica that recovered may go on
                raise Unavailable(f"{row['name']} cannot start: {row['reason']}")
            if row["unplaced"]:
                raise Unavailable(f"{row['name']} cannot be placed: {row['reason']}")
            http = f" and {row['http']}/v1" if row["http"] else ""
            where = f" at {row['endpoint']}{http} (pid {row['pid']})" if row["endpoint"] else ""
            line = f"{row['name']}: {row['phase']}{where}" + (
                f", {row['reason']}" if row["reason"] else ""
            )
            if shown.get(row["name"]) != line:
                shown[row["name"]] = line
                if row["phase"] != "down" or row["reason"]:
                    say(line)
        return "; ".join(shown[row["name"]] for row in rows if row["phase"] != "serving")

    until_nothing(pending, "not serving in time:", deadline, say)
    return rows


def as_placed(cell: Cell, rows: list[dict[str, Any]]) -> Cell:
    """The cell with the addresses that its controller reports, written to the state file too: what
    starts on another node of the cluster has another address."""
    (served,) = [row for row in rows if row["name"].startswith(f"{ProcessRole.COORDINATOR}/")]
    fronts = [row["endpoint"] for row in rows if row["name"].startswith(f"{ProcessRole.FRONTEND}/")]
    cell = replace(
        cell, endpoint=served["endpoint"], http=served["http"], frontends=",".join(fronts)
    )
    write_cell(cell)
    return cell


def missing(status: CellStatus, workers: Set[str]) -> str:
    """Which workers a coordinator lacks, or has left over, that is to be connected to exactly
    these, each of them at work in a lane; empty: none."""
    in_lanes = {name for lane in status.lanes for name in (lane.verifier, *lane.drafters)}
    found = {each.name: each for each in status.processes if each.name.startswith(WORKERS)}
    at_work = {name for name in in_lanes & found.keys() if found[name].state == "serving"}
    said = dict.fromkeys(workers, "not connected") | {
        name: f"{each.condition}{'' if name in in_lanes else ', in no lane'}"
        for name, each in found.items()
    }
    return ", ".join(f"{name} is {said[name]}" for name in sorted(workers ^ at_work))


def await_lanes(client: Client, report: Report, deadline: float, say: Say) -> tuple[int, int]:
    """Waits until the coordinator lacks nothing of what its controller wants by now, which another
    `dspark scale` may change meanwhile; returns the wanted (verifiers, drafters). A coordinator
    that does not answer may come back."""
    workers: set[str] = set()

    def pending() -> str:
        nonlocal workers
        wanted = (row["name"] for row in report() if row["phase"] != "stopping")
        workers = {name for name in wanted if name.startswith(WORKERS)}
        try:
            return missing(client.status(), workers)
        except DsparkError as error:
            return str(error) or type(error).__name__

    until_nothing(pending, LATE, deadline, say)
    verifiers = sum(name.startswith(WORKERS[0]) for name in workers)
    return verifiers, len(workers) - verifiers


def scale(
    verifiers: int | None, drafters: int | None, autoscale: bool | None, say: Say
) -> tuple[int, int]:
    """Resizes the cell of the state folder; None leaves a pool as it is. Returns the sizes in
    force.

    Workers that leave get no new sequences and are waited for.
    """
    if verifiers == 0:
        raise WrongCommand("scale: a cell needs at least one verifier")
    cell = find_cell()
    with joined(cell) as cluster:
        taken: list[Any] = []

        def asking() -> str:  # again if it was taken unheard: that changes nothing
            taken[:] = cluster.resize(cell, verifiers, drafters, autoscale)
            return ""

        until_nothing(asking, "the sizes were not taken:", time.monotonic() + RESTART_S, say)
        *wanted, within_s = taken
        if (verifiers, drafters) == (None, None):
            return wanted[0], wanted[1]
        deadline = time.monotonic() + within_s

        def report() -> list[dict[str, Any]]:
            find_cell()  # raises NoCell once another command has taken it down
            rows: list[dict[str, Any]] = cluster.report(cell)
            return rows

        with operating(as_placed(cell, await_replicas(report, deadline, say))) as client:
            return await_lanes(client, report, deadline, say)
