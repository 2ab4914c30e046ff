"""What a controller needs of whoever runs processes. Knows no Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from deploy.topology import Replica
from dspark.errors import DsparkError


@dataclass(frozen=True)
class StartedProcess:
    """A process that serves."""

    endpoint: str
    incarnation: int
    pid: int
    http: str = ""  # URL of its HTTP front, if it has one


class StartFailed(DsparkError):
    """A process did not start. `fatal`: it said itself that it cannot, as configured."""

    def __init__(self, sentence: str, *, fatal: bool) -> None:
        super().__init__(sentence)
        self.fatal = fatal


class NothingStarted(DsparkError):
    """A Ray cluster cannot be joined, or somebody else's cell runs there: nothing of ours is to be
    undone."""


class NobodyListens(NothingStarted):
    """A Ray cluster is gone, and with it every actor."""


@dataclass(frozen=True)
class Pending:
    """What a launch waits for: `why` is empty when it is simply loading. `unplaced`: no node there
    can hold it, and it has waited for one long enough."""

    why: str = ""
    unplaced: bool = False


class Fleet(Protocol):
    """Runs processes. Names are those of the topology; at most one process has a name."""

    async def adopt(self) -> Mapping[str, StartedProcess]:
        """Processes that an earlier controller left running."""

    async def launch(self, replica: Replica) -> StartedProcess:
        """Starts a process and waits until it serves; StartFailed says why not."""

    async def end(self, name: str, grace_s: float) -> None:
        """Ends the process, if there is one; without grace it is killed."""

    def pending(self, name: str) -> Pending:
        """Why a launch is still waiting."""
