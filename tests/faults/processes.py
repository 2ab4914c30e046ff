"""A cell of real processes whose members can be killed, stopped, drained, restarted and cut off.

    with FaultCell(verifiers=2, between="tcp") as cell:
        cell.kill("verify/0")                    # SIGKILL; gone on return
        cell.freeze("verify/1"); cell.thaw("verify/1")
        cell.restart("verify/0")                 # same endpoint, another incarnation
        cell.proxies["draft/0"].blackhole()      # with between="tcp"

Everything that `ProcessCell` offers is here too. With `between`, the coordinator and the verifiers
know workers by the address of a proxy of their own; with "kernel" by their own address in a network
of their own (`namespaces`).
"""

import signal
from collections.abc import Sequence
from functools import partialmethod
from pathlib import Path
from typing import Any, Literal

import grpc
import psutil

from deploy.processes import Child, ProcessCell
from dspark.wire.v1 import draft_pb2_grpc, types_pb2
from tests.faults import namespaces
from tests.faults.pair import DRAFTER, TARGET
from tests.faults.tcp_proxy import TcpProxy
from tests.waiting import came

EXIT_S = 30.0


Between = Literal["tcp", "kernel"]


class FaultCell(ProcessCell):
    """A `ProcessCell` to be hurt. between: what stands before every worker, a proxy of TCP, a cable
    of the kernel (which loses packets, and needs `namespaces.enter`), or nothing."""

    def __init__(
        self,
        target: str | Path = TARGET,
        drafter: str | Path = DRAFTER,
        *,
        between: Between | None = None,
        **settings: Any,
    ) -> None:
        for role in ("verify", "draft"):  # a small pair has no step worth measuring at each start
            settings[role] = {"measure_cost": False, **(settings.get(role) or {})}
        super().__init__(target, drafter, **settings)
        self.proxies: dict[str, Any] = {}
        self._between = between
        self._own: dict[str, str] = {}  # endpoints behind proxies
        if between == "kernel":
            namespaces.bridge()

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal to one process; after SIGKILL it is gone on return."""
        process = self.children[name].process
        process.send_signal(number)
        if number is signal.SIGKILL:
            process.wait(EXIT_S)

    freeze = partialmethod(kill, number=signal.SIGSTOP)  # it keeps its connections
    thaw = partialmethod(kill, number=signal.SIGCONT)
    terminate = partialmethod(kill, number=signal.SIGTERM)

    def alive(self, name: str) -> bool:
        return self.children[name].process.poll() is None

    def resources(self, name: str) -> dict[str, int]:
        of = psutil.Process(self.children[name].pid)
        return {"rss": of.memory_info().rss, "fds": of.num_fds(), "threads": of.num_threads()}

    def settled(self, within_s: float = 10.0, *, everybody: bool = False) -> bool:
        """Whether every connected worker frees every sequence and page in time, see `held`."""
        return came(lambda: not self.held(everybody=everybody), within_s)

    def held(self, *, everybody: bool = False) -> dict[str, str]:
        """What each connected worker holds; with `everybody` also why others do not say."""
        found = {}
        with self.client() as client:
            for each in client.status().processes:
                if each.sequences or each.pages_held:
                    found[each.name] = f"{each.sequences} sequences, {each.pages_held} pages"
                elif everybody and (each.state != "serving" or each.detail):
                    found[each.name] = f"{each.state}: {each.detail}"
        return found

    def stop(self) -> None:
        for child in self.children.values():
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGCONT)  # a stopped process cannot end in order
        super().stop()
        for proxy in self.proxies.values():
            proxy.close()
        self.proxies.clear()

    def _await_ready(self, child: Child) -> None:
        """Others learn the address of the proxy instead of the process's own."""
        super()._await_ready(child)
        if self._between != "tcp" or child.name.startswith("coordinator/"):
            return
        if child.name not in self.proxies:
            self.proxies[child.name] = TcpProxy(child.name, child.endpoint)
        if child.name.startswith("draft/"):
            self.proxies[child.name].carry(_rounds_port(child.endpoint))
        self._own[child.name] = child.endpoint
        child.endpoint = self.proxies[child.name].endpoint

    def _place(self, name: str) -> list[str]:
        """A worker with a network of its own is known by its address there."""
        if self._between != "kernel" or name.startswith("coordinator/"):
            return super()._place(name)
        self.proxies[name] = own = namespaces.Namespace(len(self.proxies) + 1)
        return [f"--bind={own.address}:0", "--insecure"]

    def _spawn(self, name: str, command: Sequence[str]) -> Child:
        before = (
            self.proxies[name].enter if self._between == "kernel" and name in self.proxies else ()
        )
        if tuple(command[: len(before)]) == before:  # started again
            before = ()
        return super()._spawn(name, [*before, *command])

    @property
    def workers(self) -> list[str]:
        return [name for name in self.children if not name.startswith("coordinator/")]

    def replace(self, name: str) -> Child:
        self.kill(name)
        return self.restart(name)

    def restart(self, name: str) -> Child:
        """Starts a dead process again at its old endpoint, with another incarnation."""
        dead = self.children[name]
        if dead.process.stdout:
            dead.process.stdout.close()
        command = [word for word in dead.command if not word.startswith("--bind=")]
        own = self._own.get(name, dead.endpoint)  # a proxy before it stays where it is
        child = self._spawn(name, [*command, f"--bind={own}"])
        self._await_ready(child)
        return child


def _rounds_port(endpoint: str) -> int:
    with grpc.insecure_channel(endpoint) as channel:
        stub = draft_pb2_grpc.DraftStub(channel)
        return int(stub.Describe(types_pb2.DescribeRequest(), timeout=EXIT_S).rounds_port)
