"""A coordinator's end of a worker's session, as plain calls, for tests of real workers over loopback."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc

from draft_service import process as draft_process
from draft_service.config import DraftConfig
from dspark.runtime.channel import auth_metadata, open_channel
from dspark.types import NO_Q, Cursor, Law, SparseQ
from dspark.wire import codec, cohorts
from dspark.wire.v1 import draft_pb2, draft_pb2_grpc, types_pb2, verify_pb2, verify_pb2_grpc
from verify_service import process as verify_process
from verify_service.config import VerifyConfig

DEADLINE_S = 60.0
GREEDY = Law(temperature=0.0)
VOCAB = 128  # of the golden pair


@dataclass(frozen=True)
class Answers:
    """What became of a cohort: the message, and the nouns in it."""

    message: Any
    items: list[Any]


class Stream:
    """Commands by tag; events in whatever order they come."""

    def __init__(self, endpoint: str, stub: Any, command: Any, token: str | None = None) -> None:
        self.channel = open_channel(endpoint)
        self.stub = stub(self.channel)
        self._command = command
        self._call = self.stub.Session(metadata=auth_metadata(token))
        self._tags = itertools.count(1)
        self._writing = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._reader = asyncio.create_task(self._read())

    async def ask(self, incarnation: int = 0, **command: Any) -> Any:
        tag = next(self._tags)
        # The answer may be there, and no longer waited for, before the write has returned.
        future = self._waiting[tag] = asyncio.get_running_loop().create_future()
        async with self._writing:  # a call takes one write at a time
            await self._call.write(self._command(tag=tag, incarnation=incarnation, **command))
        return await asyncio.wait_for(future, DEADLINE_S)

    async def end(self) -> None:
        """Ends this side and waits for the worker to end its own."""
        await self._call.done_writing()
        await asyncio.wait_for(self._reader, DEADLINE_S)
        await self.channel.close()

    async def _read(self) -> None:
        try:
            async for event in self._call:
                self._waiting.pop(event.tag).set_result(event)
        except grpc.aio.AioRpcError as error:
            for future in self._waiting.values():
                future.set_exception(error)


class VerifyStream(Stream):
    def __init__(self, endpoint: str, token: str | None = None) -> None:
        super().__init__(endpoint, verify_pb2_grpc.VerifyStub, verify_pb2.VerifyCommand, token)

    async def prefill(
        self,
        cursor: Cursor,
        ids: list[int],
        law: Law = GREEDY,
        *,
        reserve: int = 0,
        sink: Any = None,
        keep: bool = True,
    ) -> Any:
        command = verify_pb2.Prefill(
            cursor=codec.write_cursor(cursor),
            token_ids=ids,
            law=codec.write_law(law),
            reserve_tokens=reserve or len(ids) + 80,
            sink=sink,
            keep_features=keep,
        )
        return (await self.ask(prefill=command)).prefilled

    async def verify(self, *items: Item) -> Answers:
        said = (await self.ask(verify=verify_cohort(*items))).verdicts
        return Answers(said, cohorts.read_verdicts(said, [item.cursor for item in items]))

    async def release(self, sequence: int, epoch: int = 1) -> int:
        ref = types_pb2.SequenceRef(sequence=sequence, epoch=epoch)
        return (await self.ask(release=verify_pb2.VerifyRelease(sequences=[ref]))).released.sequences


class DraftStream(Stream):
    def __init__(self, endpoint: str, token: str | None = None) -> None:
        super().__init__(endpoint, draft_pb2_grpc.DraftStub, draft_pb2.DraftCommand, token)

    async def open(self, cursor: Cursor, reserve: int = 200, law: Law = GREEDY) -> Any:
        command = draft_pb2.Open(cursor=codec.write_cursor(cursor), reserve_tokens=reserve, law=codec.write_law(law))
        return (await self.ask(open=command)).opened

    async def draft(self, *items: Draft, wait_us: int = 10_000_000) -> Answers:
        said = (await self.ask(draft=draft_cohort(*items, wait_us=wait_us))).blocks
        return Answers(said, cohorts.read_blocks(said, VOCAB))


@dataclass(frozen=True)
class Item:
    """One sequence of a cohort to verify."""

    cursor: Cursor
    anchor: int
    draft_ids: tuple[int, ...]
    q: SparseQ
    sink: Any = None


def verify_item(
    cursor: Cursor, anchor: int, draft_ids: list[int] | tuple[int, ...] = (), q: SparseQ | None = None, sink: Any = None
) -> Item:
    if q is None:  # a greedy draft: all mass on the drafted token
        q = one_hot(draft_ids) if draft_ids else NO_Q
    return Item(cursor, anchor, tuple(draft_ids), q, sink)


def verify_cohort(*items: Item) -> verify_pb2.VerifyCohort:
    return verify_pb2.VerifyCohort(
        cursors=cohorts.write_cursors([item.cursor for item in items]),
        anchors=[item.anchor for item in items],
        lengths=[len(item.draft_ids) for item in items],
        draft_ids=[token for item in items for token in item.draft_ids],
        sources=[verify_pb2.Source(sink=item.sink) for item in items],
        source=range(1, len(items) + 1),
        **cohorts.write_q([item.q for item in items]),
    )


def one_hot(ids: list[int] | tuple[int, ...]) -> SparseQ:
    import numpy as np

    return SparseQ.of(np.array(ids, np.uint32)[:, None], np.ones((len(ids), 1), np.float32))


@dataclass(frozen=True)
class Draft:
    """One sequence of a cohort to draft for."""

    cursor: Cursor
    anchor: int
    slots: int = 0


def draft_item(cursor: Cursor, anchor: int, slots: int = 0) -> Draft:
    return Draft(cursor, anchor, slots)


def draft_cohort(*items: Draft, wait_us: int = 0) -> draft_pb2.DraftCohort:
    return draft_pb2.DraftCohort(
        cursors=cohorts.write_cursors([item.cursor for item in items]),
        anchors=[item.anchor for item in items],
        features_through=[max(item.cursor.committed_len - 1, 0) for item in items],
        max_slots=[item.slots for item in items],
        wait_us=wait_us,
    )


@contextlib.asynccontextmanager
async def verifier(target: Any, drafter: Any = None, **settings: Any) -> AsyncIterator[verify_process.VerifyProcess]:
    config = VerifyConfig(
        target=str(target), drafter=str(drafter) if drafter else None, **{"measure_cost": False, **settings}
    )
    process = await verify_process.start(config)
    try:
        yield process
    finally:
        await process.stop(1.0)


@contextlib.asynccontextmanager
async def drafter(path: Any, **settings: Any) -> AsyncIterator[draft_process.DraftProcess]:
    process = await draft_process.start(
        DraftConfig(drafter=str(path), **{"measure_cost": False, "max_wait_us": 10_000_000, **settings})
    )
    try:
        yield process
    finally:
        await process.stop(1.0)


async def until(condition: Any, deadline_s: float = 30.0) -> None:
    """Waits for something that another task brings about."""
    for _ in range(int(deadline_s / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not so within {deadline_s} s")
