"""A drafter's end of the rounds stream: orders and rows in, blocks out, the hostile refused."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from draft_service import rounds, rounds_server
from dspark.rounds.events import OrderRow
from dspark.runtime import backlog
from dspark.runtime.aio_call import ending_as_told
from dspark.runtime.channel import auth_metadata, open_channel
from dspark.synthetic.oracle import SyntheticOracle
from dspark.synthetic.rows import DTYPE, row_values
from dspark.types import Block, Cursor, EmptyReason, RefusalReason, SamplingParams
from dspark.wire import codec, orders
from dspark.wire.blocks import read_blocks
from dspark.wire.v1 import draft_pb2, draft_pb2_grpc, features_pb2, features_pb2_grpc, types_pb2
from tests.columns import rows_of
from tests.keys import token_files
from tests.services import workers
from tests.services.cell import health
from tests.synthetic_file import synthetic_file
from tests.waiting import until

WIDTH, VOCAB, BLOCK = 1024, 500, 4
GREEDY = SamplingParams(temperature=0.0, seed=3)
VERIFIER = 77


@pytest.fixture(params=[0, None], ids=["own port", "one port"])
async def drafter(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    path = synthetic_file(tmp_path, [1.0] * BLOCK, feature_width=WIDTH, vocabulary=VOCAB)
    settings = {"max_sequences": 8, "rounds_port": request.param}
    async with workers.drafter(**workers.simulated(path), **settings) as process:
        yield process


async def port_of_rounds(process: Any) -> int:
    async with open_channel(process.endpoint) as channel:
        stub = draft_pb2_grpc.DraftStub(channel)
        return int((await stub.Describe(types_pb2.DescribeRequest())).rounds_port)


class RoundsCall:
    """A verifier's end."""

    def __init__(self, process: Any, *, verifier: int = VERIFIER, **hello: Any) -> None:
        self._process, self.channel = process, open_channel(process.endpoint)
        self._own: Any = None
        said = {
            "drafter_incarnation": process.incarnation,
            "projection": process.engine.projection,
            **hello,
        }
        self._hello = draft_pb2.RoundsHello(verifier_incarnation=verifier, **said)

    async def __aenter__(self) -> RoundsCall:
        port = await port_of_rounds(self._process)
        assert bool(port) is (self._process.engine.config.rounds_port is not None)
        self._own = open_channel(f"127.0.0.1:{port}") if port else self.channel
        self.call = ending_as_told(draft_pb2_grpc.DraftStub(self._own).Rounds())
        await self.tell(hello=self._hello)
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            await self.call.done_writing()
        await self._own.close()
        await self.channel.close()

    async def tell(self, **command: Any) -> None:
        await self.call.write(draft_pb2.RoundsCommand(**command))

    async def hear(self) -> draft_pb2.RoundsEvent:
        event = await asyncio.wait_for(self.call.read(), 20)
        if event is grpc.aio.EOF:
            raise AssertionError(
                f"the stream ended: {await self.call.code()} {await self.call.details()}"
            )
        return event

    async def refused(self) -> tuple[grpc.StatusCode, str]:
        """How the drafter ended the stream."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await asyncio.wait_for(self.call.read(), 20) is not grpc.aio.EOF:
                pass
        return await self.call.code(), await self.call.details()

    async def open(
        self, sequence: int, epoch: int = 1, reserve: int = 200
    ) -> draft_pb2.ContextOpened:
        params = codec.write_sampling(GREEDY)
        asked = draft_pb2.OpenContext(
            sequence=sequence, epoch=epoch, reserve_tokens=reserve, sampling=params
        )
        await self.tell(open=asked)
        opened = (await self.hear()).opened
        assert (opened.sequence, opened.epoch) == (sequence, epoch)
        return opened

    async def order(self, number: int, *rows: OrderRow, first_token: int = 5) -> list[Block]:
        for message in written(number, *rows, first_token=first_token):
            await self.call.write(message)
        blocks = (await self.hear()).blocks
        assert blocks.order == number
        cursors = [
            Cursor(each.sequence, each.epoch, each.round, each.committed_len) for each in rows
        ]
        return rows_of(read_blocks(len(rows), blocks, VOCAB), cursors)


@contextlib.asynccontextmanager
async def greeted(process: Any, **said: Any) -> AsyncIterator[RoundsCall]:
    async with RoundsCall(process, **said) as call:
        await call.hear()  # the welcome
        yield call


def row(
    sequence: int, committed_len: int, *, have: int = 0, epoch: int = 1, slots: int = BLOCK
) -> OrderRow:
    return OrderRow(sequence, epoch, 1, committed_len, 9, slots, have)


def written(number: int, *rows: OrderRow, first_token: int = 5) -> list[draft_pb2.RoundsCommand]:
    """As a verifier writes it: all rows from `first_row` on travel."""
    counts = [each.committed_len - 1 - each.first_row for each in rows]
    total = sum(counts)
    features = packed(total, first_token) if total else None
    return list(orders.write_order(number, rows, counts, [1] * total, features))


def packed(count: int, first_token: int) -> orders.PackedRows:
    return orders.PackedRows(
        DTYPE, count, WIDTH, row_values(np.full(count, first_token), WIDTH).tobytes()
    )


def truth(first_token: int, start: int, count: int, engine: Any) -> list[int]:
    oracle = SyntheticOracle(engine.spec)
    keys = np.full(count, oracle.key(first_token, GREEDY.seed, GREEDY.choice), np.uint64)
    return [int(token) for token in oracle.target(keys, np.arange(start, start + count))]


async def test_rows_and_order_are_one_message_and_the_block_follows(drafter: Any) -> None:
    async with RoundsCall(drafter) as call:
        welcome = (await call.hear()).welcome
        assert (welcome.incarnation, welcome.drafter_version) == (
            drafter.incarnation,
            drafter.engine.fingerprint,
        )
        await call.open(1)
        await call.open(2)
        first, second = await call.order(1, row(1, 10), row(2, 7, slots=2))
        assert list(first.token_ids) == truth(5, 10, BLOCK, drafter.engine)
        assert list(second.token_ids) == truth(5, 7, 2, drafter.engine)
        assert (first.watermark, second.watermark) == (9, 6)
        (again,) = await call.order(2, row(1, 12, have=9))
        assert list(again.token_ids) == truth(5, 12, BLOCK, drafter.engine)
    await until(lambda: drafter.engine.held.sequences == 0)


async def test_the_mask_of_a_first_slot_is_its_own_sequence_s(
    drafter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, bytes]] = []
    drafts = drafter.engine.draft

    def draft(items: Any) -> Any:
        seen.extend((item.anchor, item.mask) for item in items)
        return drafts(items)

    monkeypatch.setattr(drafter.engine, "draft", draft)
    async with greeted(drafter) as call:
        for sequence in (1, 3):
            await call.open(sequence)
        rows = [row(1, 10)._replace(anchor=11), row(2, 3), row(3, 8)._replace(anchor=13)]
        masks = [b"mask", b"", b"mask" * 2]
        (first,) = written(1, *rows)
        order = {"mask_bytes": [len(mask) for mask in masks], "masks": b"".join(masks)}
        first.order.MergeFrom(draft_pb2.Order(**order))
        await call.call.write(first)
        assert (await call.hear()).blocks.order == 1
    assert seen[::2] == [(11, b"mask"), (13, b"mask" * 2)]
    assert not seen[1][1]


async def test_more_rows_than_one_message_takes_come_behind_it(drafter: Any) -> None:
    async with greeted(drafter) as call:
        for sequence in (1, 2, 3):
            await call.open(sequence, reserve=1000)
        messages = written(1, row(1, 300), row(2, 2), row(3, 120))
        assert len(messages) == 4  # 419 rows of 2 KiB
        assert max(message.ByteSize() for message in messages) < orders.PART + 8192
        blocks = await call.order(2, row(1, 300), row(2, 2), row(3, 120))
        assert [block.watermark for block in blocks] == [299, 1, 119]
        assert all(block.token_ids for block in blocks)


async def test_rows_that_are_missing_or_contexts_that_are_not_there_leave_blocks_empty(
    drafter: Any,
) -> None:
    async with greeted(drafter) as call:
        await call.open(1)
        await call.order(1, row(1, 10))
        blocks = await call.order(2, row(1, 20, have=15), row(8, 3), row(1 << 40, 3, epoch=2))
        assert [block.empty_reason for block in blocks] == [
            EmptyReason.FEATURES_MISSING, EmptyReason.UNKNOWN_SEQUENCE,
            EmptyReason.UNKNOWN_SEQUENCE,
        ]  # fmt: skip
        assert blocks[0].watermark == 9
        await call.tell(close=draft_pb2.CloseContexts(sequences=[{"sequence": 1, "epoch": 1}]))
        (gone,) = await call.order(3, row(1, 21, have=19))
        assert gone.empty_reason is EmptyReason.UNKNOWN_SEQUENCE


async def test_verifiers_that_name_sequences_alike_do_not_meet(drafter: Any) -> None:
    async with greeted(drafter) as one, greeted(drafter, verifier=78) as other:
        await one.open(1)
        await other.open(1)
        mine, theirs = await asyncio.gather(
            one.order(1, row(1, 10)), other.order(1, row(1, 6), first_token=50)
        )
        assert list(mine[0].token_ids) == truth(5, 10, BLOCK, drafter.engine)
        assert list(theirs[0].token_ids) == truth(50, 6, BLOCK, drafter.engine)
        assert drafter.engine.held.sequences == 2


async def test_bulk_rows_find_the_context_of_their_verifier_and_are_acknowledged_with_a_watermark(
    drafter: Any,
) -> None:
    async with greeted(drafter) as call:
        await call.open(4)
        await call.order(1, row(4, 2))
        push = features_pb2_grpc.FeaturesStub(call.channel).Push()
        for verifier in (VERIFIER, VERIFIER + 1):
            await push.write(
                features_pb2.FeatureChunk(
                    sink_incarnation=drafter.incarnation,
                    source_incarnation=verifier,
                    projection=drafter.engine.projection,
                    sequence=4,
                    epoch=1,
                    start_position=1,
                    token_ids=[1] * 60,
                    rows=types_pb2.TensorChunk(**packed(60, 5).chunk()),
                )
            )
        await push.done_writing()
        acks = [ack async for ack in push]
        marks = [(mark.sequence, mark.epoch, mark.rows) for ack in acks for mark in ack.watermarks]
        assert marks == [(4, 1, 61)]
        assert [refused.sequence for ack in acks for refused in ack.refused] == [4], (
            "the other verifier's"
        )
        (block,) = await call.order(2, row(4, 62, have=61))
        assert block.token_ids


async def test_a_silent_verifier_loses_its_contexts_and_one_with_little_to_say_does_not(
    drafter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "LEAST_LEASE_S", 1.0)
    drafter.engine.config = replace(drafter.engine.config, lease_s=0.1)
    async with greeted(drafter) as silent, greeted(drafter, verifier=78) as other:
        await silent.open(1)
        await other.open(2)

        async def keep() -> None:
            while True:
                await other.tell(
                    keep=draft_pb2.KeepContexts(sequences=[{"sequence": 2, "epoch": 1}])
                )
                await asyncio.sleep(0.1)

        keeping = asyncio.create_task(keep())
        code, why = await silent.refused()
        assert (code, why.split(":")[0]) == (grpc.StatusCode.UNAVAILABLE, "lease")
        await until(lambda: drafter.engine.held.sequences == 1)
        assert drafter.metrics.value("dropped_total", kind="sequence", reason="lease") == 1
        (block,) = await other.order(1, row(2, 5))
        assert block.token_ids
        keeping.cancel()


async def test_contexts_that_nobody_names_any_more_are_freed(drafter: Any) -> None:
    async with greeted(drafter) as call, greeted(drafter, verifier=78) as other:
        for sequence in (1, 2):
            await call.open(sequence)
        await other.open(3)
        await call.tell(
            keep=draft_pb2.KeepContexts(sequences=[{"sequence": 2, "epoch": 1}, {"sequence": 9}])
        )
        await until(lambda: drafter.engine.held.sequences == 2)
        blocks = await call.order(1, row(1, 5), row(2, 5))
        assert [bool(block.token_ids) for block in blocks] == [False, True]
        (theirs,) = await other.order(1, row(3, 5))
        assert theirs.token_ids


async def test_a_context_without_room_is_refused_and_the_stream_goes_on(drafter: Any) -> None:
    async with greeted(drafter) as call:
        reasons = [(await call.open(sequence)).refusal.reason for sequence in range(9)]
        assert reasons == [0] * 8 + [RefusalReason.NO_PAGES]
        blocks = await call.order(1, row(0, 5), row(8, 5))
        assert [bool(block.token_ids) for block in blocks] == [True, False]


@pytest.mark.parametrize(
    ("hello", "code", "field"),
    [
        ({"drafter_incarnation": 1}, grpc.StatusCode.UNAVAILABLE, "hello.drafter_incarnation"),
        ({"projection": "another"}, grpc.StatusCode.INVALID_ARGUMENT, "hello.projection"),
    ],
)
async def test_who_is_not_meant_or_understands_other_rows_ends_the_stream(
    drafter: Any, hello: dict[str, Any], code: grpc.StatusCode, field: str
) -> None:
    async with RoundsCall(drafter, **hello) as call:
        ended, why = await call.refused()
        assert ended is code
        assert why.startswith(field)


def _order(*, of_features: bool = False, **changes: Any) -> draft_pb2.RoundsCommand:
    """An order with other values of its fields, or of its features'."""
    (message,) = written(1, row(1, 10))
    change(message.order.features if of_features else message.order, changes)
    return message


def change(message: Any, changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        message.ClearField(name)
        message.MergeFrom(type(message)(**{name: value}))


HOSTILE = {
    "order.sequence": _order(sequence=[]),
    "order.order": _order(order=0),
    "order.epoch": _order(epoch=[1, 2]),
    "order.round": _order(round=[]),
    "order.committed_len": _order(committed_len=[]),
    "order.anchors": _order(anchors=[]),
    "order.slots": _order(slots=[0]),
    "order.rows": _order(rows=[10]),
    "order.token_ids": _order(token_ids=[1] * 8),
    "order.mask_bytes": _order(mask_bytes=[4, 4], masks=bytes(8)),
    "order.masks": _order(mask_bytes=[3], masks=bytes(3)),
    "order.masks: 8": _order(mask_bytes=[4], masks=bytes(8)),
    "rows.dtype": _order(of_features=True, dtype="int8"),
    "rows.shape": _order(of_features=True, shape=[9, WIDTH + 1]),
    "rows.data": _order(of_features=True, data=b"x"),
    "rows.order": draft_pb2.RoundsCommand(rows=draft_pb2.OrderRows(order=1)),
    "sampling.top_p": draft_pb2.RoundsCommand(open=draft_pb2.OpenContext(sequence=1)),
    "hello": draft_pb2.RoundsCommand(hello=draft_pb2.RoundsHello()),
    "command": draft_pb2.RoundsCommand(),
}


@pytest.mark.parametrize("field", HOSTILE)
async def test_what_does_not_fit_ends_the_stream_by_field_and_harms_nobody_else(
    drafter: Any, field: str
) -> None:
    async with greeted(drafter) as good, greeted(drafter, verifier=78) as bad:
        await good.open(1)
        await bad.open(1)
        await bad.call.write(HOSTILE[field])
        code, why = await bad.refused()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert why.startswith(field), why
        (block,) = await good.order(1, row(1, 10))
        assert block.token_ids
        await until(lambda: drafter.engine.held.sequences == 1)


async def test_rows_that_never_come_and_orders_out_of_turn_end_the_stream(drafter: Any) -> None:
    async with greeted(drafter) as call:
        await call.open(1, reserve=1000)
        await call.call.write(written(1, row(1, 300))[0])
        await call.call.write(written(2, row(1, 300))[0])
        code, why = await call.refused()
        assert (code, why.split(":")[0]) == (grpc.StatusCode.INVALID_ARGUMENT, "rows")
    async with greeted(drafter) as call:
        await call.open(1)
        await call.order(2, row(1, 10))
        await call.call.write(written(2, row(1, 12, have=9))[0])
        assert (await call.refused())[1].startswith("order.order")


async def test_a_verifier_that_says_more_than_is_heard_loses_its_stream(
    drafter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its bytes, long before its messages are too many."""
    monkeypatch.setattr(backlog, "BYTES", 1 << 20)
    go_on = threading.Event()
    async with greeted(drafter) as call:
        drafter.device.post(lambda: go_on.wait(20), asyncio.get_running_loop())
        refs = [
            types_pb2.SequenceRef(sequence=1 << 60, epoch=1 << 30)
        ] * 1000  # 17 bytes each, or more
        try:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                for _ in range(100):
                    await call.tell(keep=draft_pb2.KeepContexts(sequences=refs))
            code, _ = await call.refused()
        finally:
            go_on.set()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_drafter_that_leaves_says_so_to_coordinators_and_opens_nobody(drafter: Any) -> None:
    async with greeted(drafter) as call:
        stub = draft_pb2_grpc.DraftStub(call.channel)
        watch = stub.Watch(draft_pb2.WatchRequest(incarnation=drafter.incarnation))
        drafter.draining.begin(5.0)
        assert 4000 < (await asyncio.wait_for(watch.read(), 10)).finish_within_ms <= 5000
        watch.cancel()
        assert (await call.open(1)).refusal.reason == RefusalReason.NO_PAGES


# the bound of one port is the server's
@pytest.mark.parametrize("drafter", [0], indirect=True, ids=["own port"])
async def test_more_streams_than_the_own_port_has_threads_for_are_refused_and_the_others_go_on(
    drafter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with contextlib.AsyncExitStack() as calls:
        first = await calls.enter_async_context(greeted(drafter))
        for verifier in range(1, rounds_server.MAX_STREAMS):
            await calls.enter_async_context(greeted(drafter, verifier=verifier))
        endpoint = f"127.0.0.1:{await port_of_rounds(drafter)}"
        channel = await calls.enter_async_context(open_channel(endpoint))
        # what is written to a refused call may hide the refusal
        one_more = draft_pb2_grpc.DraftStub(channel).Rounds()
        with contextlib.suppress(grpc.aio.AioRpcError):
            await asyncio.wait_for(one_more.read(), 20)
        assert await one_more.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await first.open(1)
        (block,) = await first.order(1, row(1, 10))
        assert block.token_ids


async def test_a_stranger_gets_no_rounds_and_a_worker_does(tmp_path: Path) -> None:
    tokens, files = token_files(tmp_path, "worker")
    spec = synthetic_file(tmp_path, [1.0] * BLOCK)
    async with workers.drafter(**workers.simulated(spec), **files) as process:
        mine = auth_metadata(tokens["worker"])
        async with open_channel(process.endpoint) as channel:
            stub = draft_pb2_grpc.DraftStub(channel)
            port = (await stub.Describe(types_pb2.DescribeRequest(), metadata=mine)).rounds_port
        async with open_channel(f"127.0.0.1:{port}") as channel:
            hello = draft_pb2.RoundsHello(
                drafter_incarnation=process.incarnation,
                projection=process.engine.projection,
                verifier_incarnation=1,
            )
            for metadata, code in (
                (None, grpc.StatusCode.UNAUTHENTICATED),
                (auth_metadata("of something else"), grpc.StatusCode.UNAUTHENTICATED),
                (mine, grpc.StatusCode.OK),
            ):
                call = draft_pb2_grpc.DraftStub(channel).Rounds(metadata=metadata)
                if code is grpc.StatusCode.OK:  # a write that meets a refusal would hide it
                    await call.write(draft_pb2.RoundsCommand(hello=hello))
                    assert (await call.read()).welcome.incarnation == process.incarnation
                    await call.done_writing()
                assert await asyncio.wait_for(call.code(), 20) is code
        assert process.metrics.value("refusals_total", reason="unauthenticated") == 2


async def test_a_drafter_whose_passes_fail_says_that_it_does_not_serve(
    drafter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the device is gone")

    async def says(expected: str) -> None:
        async with asyncio.timeout(10):
            while await health(drafter, "dspark.wire.v1.Draft") != expected:
                pass

    async with greeted(drafter) as call:
        await call.open(1)
        await says("serving")
        monkeypatch.setattr(type(drafter.engine), "draft", broken)
        for number in range(1, 6):
            (block,) = await call.order(number, row(1, 10))
            assert block.empty_reason is EmptyReason.INVALID
        await says("not_serving")
        monkeypatch.undo()
        await call.order(6, row(1, 10))
        await says("serving")
