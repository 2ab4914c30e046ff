"""Interface between the controller and what runs its processes. Imports no Ray."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from deploy.topology import Replica
from dspark.errors import DsparkError, Unavailable


@dataclass(frozen=True)
class StartedProcess:
    """A process that serves."""

    endpoint: str
    incarnation: int
    pid: int
    http: str = ""  # URL of its HTTP front, if it has one


class StartFailed(DsparkError):
    """A process did not start. fatal: it reported itself that it cannot, as configured."""

    def __init__(self, sentence: str, *, fatal: bool) -> None:
        super().__init__(sentence)
        self.fatal = fatal


class NothingStarted(DsparkError):
    """A Ray cluster cannot be joined or used, or already runs a cell of this name: there is nothing
    to undo."""


class NobodyListens(NothingStarted):
    """Nothing listens at a Ray cluster's address: its head is gone, and its actors are or will
    be."""


class AnotherCell(DsparkError):
    """What has the cell's name in a Ray cluster is another cell, started since."""


class NoAnswer(Unavailable):
    """A controller does not answer: it may be starting, as Ray restarts one that has ended."""


Waits = Callable[[str, bool], None]
"""Is told what a launch waits for (empty: it is simply loading), and whether no node can hold it
and it has waited for one long enough."""


class Fleet(Protocol):
    """Runs processes. Names are those of the topology; at most one process has a name."""

    async def adopt(self) -> Mapping[str, StartedProcess]:
        """Takes over processes that an earlier controller left running, by name."""

    async def launch(self, replica: Replica, waits: Waits) -> StartedProcess:
        """Starts a process and waits until it serves. Raises StartFailed with the reason; what has
        started by then is the caller's to end."""

    async def end(self, name: str, grace_s: float) -> None:
        """Ends the process, if there is one; without grace it is killed."""

    def misfit(self, replicas: Collection[Replica]) -> str:
        """Which of these processes cannot be placed beside the others, and why; empty: none."""
