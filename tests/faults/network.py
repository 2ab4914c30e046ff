"""Processes and the wires between them, in one event loop: who is there, and who hangs.

A node stands for a process: the tasks it started, the calls it takes part in. Killing it cuts its
calls and ends its tasks; a frozen one keeps its connections, hears nothing and says nothing, until
whoever watches it gives up.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from tests.faults.plan import Plan

if TYPE_CHECKING:
    from tests.faults.memory_call import MemoryCall


class Node:
    """One process, under a name that its successors may have too."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive, self.frozen = True, False
        self.tasks: set[asyncio.Task[Any]] = set()
        self.context = contextvars.copy_context()
        self.context.run(_here.set, self)
        self._on_thaw: list[Callable[[], None]] = []

    def when_awake(self, job: Callable[[], None]) -> None:
        """Now, or when it wakes; never once it is dead."""
        if self.frozen:
            self._on_thaw.append(job)
        elif self.alive:
            job()

    def thaw(self) -> None:
        self.frozen = False
        waiting, self._on_thaw = self._on_thaw, []
        for job in waiting:
            self.when_awake(job)


_here: ContextVar[Node | None] = ContextVar("node", default=None)


class Network:
    """watch_s: silence after which a peer that hangs is given up, as by keepalive."""

    hop_s = 0.0002  # one way

    def __init__(self, plan: Plan | None = None, *, watch_s: float = 4.0) -> None:
        self.plan = plan or Plan()
        self.watch_s = watch_s
        self.outside = Node("client")
        self.nodes: dict[str, Node] = {"client": self.outside}
        self.servers: dict[str, tuple[Node, Any]] = {}  # by address: the node, its server
        self.names: dict[str, str] = {}  # of whoever listened at an address last
        self.calls: dict[MemoryCall, None] = {}  # in the order they began
        self._loop = asyncio.get_running_loop()
        self._ports = 20_000
        self._held: list[tuple[str, str, Callable[[], None]]] = []
        self._loop.set_task_factory(
            cast(Any, self._task)
        )  # so that a killed node's tasks end with it

    # Nodes.

    def begin(self, name: str) -> Node:
        node = self.nodes[name] = Node(name)
        return node

    async def within(self, node: Node, work: Coroutine[Any, Any, Any]) -> Any:
        """Runs something as a part of that process."""
        return await self._loop.create_task(work, context=node.context)

    def kill(self, name: str) -> None:
        """SIGKILL."""
        node = self.nodes[name]
        node.alive = node.frozen = False
        self.servers = {at: held for at, held in self.servers.items() if held[0] is not node}
        for call in self._calls_of(name):
            call.cut("Socket closed")
        for task in list(node.tasks):
            task.cancel()

    def freeze(self, name: str) -> None:
        """SIGSTOP."""
        self.nodes[name].frozen = True
        for call in self._calls_of(name):
            self._loop.call_later(self.watch_s, self._give_up, call)

    def thaw(self, name: str) -> None:
        """SIGCONT: what was held on its way goes on, on calls that nobody gave up."""
        self.nodes[name].thaw()
        held, self._held = self._held, []
        for source, target, arrive in held:
            self.deliver(source, target, arrive)

    # What calls ask.

    def here(self) -> Node:
        """The node whose code runs now."""
        return _here.get() or self.outside

    def listen(self, bind: str, server: Any) -> int:
        """Takes the server of the node whose code runs now; returns its port."""
        host, _, port = bind.rpartition(":")
        if port == "0":
            self._ports += 1
            port = str(self._ports)
        address = f"{host}:{port}"
        if address in self.servers:
            raise RuntimeError(f"{address} is taken")
        node = self.here()
        self.servers[address], self.names[address] = (node, server), node.name
        return int(port)

    def joined(self, call: MemoryCall) -> None:
        self.calls[call] = None
        if self._hangs(call.source, call.target):
            self._loop.call_later(self.watch_s, self._give_up, call)

    def deliver(self, source: str, target: str, arrive: Callable[[], None]) -> None:
        """Hands over now, or when neither of the two hangs any more."""
        if self._hangs(source, target):
            self._held.append((source, target, arrive))
        else:
            arrive()

    def _hangs(self, *names: str) -> bool:
        return any(name in self.nodes and self.nodes[name].frozen for name in names)

    def _calls_of(self, name: str) -> list[MemoryCall]:
        return [call for call in self.calls if name in (call.source, call.target)]

    def _give_up(self, call: MemoryCall) -> None:
        if call in self.calls and self._hangs(call.source, call.target):
            call.cut("ping timeout")

    def _task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **more: Any
    ) -> asyncio.Task[Any]:
        context = more.get("context") or contextvars.copy_context()
        node = context.get(_here) or self.outside
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **more)
        node.tasks.add(task)
        task.add_done_callback(node.tasks.discard)
        if not node.alive:
            task.cancel()
        return task
