"""Merges orders that wait for the device: an idle drafter takes orders of all verifiers into one
pass.

It never waits for more orders. Verifiers take turns, an order each, until the pass is full, so that
one with many sequences delays another by at most one pass. Runs on the device thread.

Invariant R5: when an answer leaves depends on what was ordered, never on what was drawn.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from draft_service.engine_core import DraftEngineCore
from draft_service.interface import DraftItem
from dspark.runtime.telemetry import Metrics
from dspark.types import Block


class Drafted(NamedTuple):
    """Blocks in the order of the items, and the device time of their pass."""

    blocks: Sequence[Block] | None  # None: the pass failed
    forward_ns: int


Answer = Callable[[Drafted], None]


class _Asked(NamedTuple):
    items: Sequence[DraftItem]
    answer: Answer
    came: float  # arrival, in monotonic seconds


class Drafting:
    """The waiting orders of one drafter. post: queues a job behind others of the device thread."""

    def __init__(
        self, engine: DraftEngineCore, metrics: Metrics, post: Callable[[Callable[[], None]], None]
    ) -> None:
        self._engine, self._metrics, self._post = engine, metrics, post
        self._waiting: dict[int, deque[_Asked]] = {}  # by verifier's stream, next in turn first
        self._posted = False
        self.wait_s = 0.0  # seconds that orders waited for the device, in all
        self.waits = 0  # orders that reached the device

    def ask(self, owner: int, items: Sequence[DraftItem], answer: Answer) -> None:
        """Queues items for a block each. answer: called once, unless the stream is forgotten
        before."""
        self._waiting.setdefault(owner, deque()).append(_Asked(items, answer, time.monotonic()))
        self._wake()

    def forget(self, owner: int) -> None:
        """Drops the waiting orders of this stream."""
        self._waiting.pop(owner, None)

    def _wake(self) -> None:
        if self._waiting and not self._posted:
            self._posted = True
            self._post(self.timed_draft)

    def timed_draft(self) -> None:
        """Runs one pass, as a device job. Raises its error once every order in it is answered."""
        self._posted = False
        taken = self._take()
        if not taken:
            return
        began, now = time.perf_counter_ns(), time.monotonic()
        items = [item for asked in taken for item in asked.items]
        blocks: list[Block] | None = None
        forward_ns = 0
        try:
            blocks = self._engine.draft(items)
            forward_ns = time.perf_counter_ns() - began
        finally:
            at = 0
            for asked in taken:
                count = len(asked.items)
                own = None if blocks is None else blocks[at : at + count]
                asked.answer(Drafted(own, forward_ns))
                at += count
            self._wake()
        self._note(taken, now, forward_ns)

    def _take(self) -> list[_Asked]:
        """Takes orders round robin while the pass has room; an order larger than a pass runs
        alone."""
        taken: list[_Asked] = []
        room = self._engine.config.max_batch_sequences
        while self._waiting:
            owner, queue = next(iter(self._waiting.items()))
            if taken and len(queue[0].items) > room:
                break
            taken.append(queue.popleft())
            room -= len(taken[-1].items)
            del self._waiting[owner]
            if queue:
                self._waiting[owner] = queue  # behind all others
        return taken

    def _note(self, taken: Sequence[_Asked], began: float, forward_ns: int) -> None:
        for asked in taken:
            self.wait_s += began - asked.came
            self._metrics.draft_wait.observe(began - asked.came)
        self.waits += len(taken)
        self._metrics.forward_seconds.labels(kind="draft").observe(forward_ns * 1e-9)
        self._metrics.draft_batch_sequences.observe(sum(len(asked.items) for asked in taken))
