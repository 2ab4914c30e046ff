"""A drafter's end of the rounds stream: orders and rows in, blocks out, the hostile refused."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from draft_service import rounds, rounds_server
from dspark.runtime import backlog
from dspark.runtime.channel import auth_metadata, open_channel
from dspark.types import EmptyReason, RefusalReason
from dspark.wire import orders
from dspark.wire.v1 import draft_pb2, draft_pb2_grpc
from tests.keys import token_files
from tests.services import workers
from tests.services.cell import ended, says
from tests.services.rounds_call import (
    GREEDY,
    VOCAB,
    WIDTH,
    RoundsCall,
    calling,
    change,
    greeted,
    port_of_rounds,
    row,
    written,
)
from tests.synthetic_file import said, synthetic_file
from tests.waiting import until

BLOCK = 4


@pytest.fixture(params=[0, None], ids=["own port", "one port"])
async def drafter(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    path = synthetic_file(tmp_path, [1.0] * BLOCK, feature_width=WIDTH, vocabulary=VOCAB)
    settings = {"max_sequences": 8, "rounds_port": request.param}
    async with workers.drafter(**workers.simulated(path), **settings) as process:
        yield process


def truth(first_token: int, start: int, count: int, engine: Any) -> list[int]:
    return said(engine.spec, first_token, GREEDY, start, count)


@pytest.fixture
async def call(drafter: Any) -> AsyncIterator[RoundsCall]:
    async with greeted(drafter) as made:
        yield made


@pytest.fixture
async def other(drafter: Any) -> AsyncIterator[RoundsCall]:
    """Of another verifier."""
    async with greeted(drafter, verifier=78) as made:
        yield made


async def test_rows_and_order_are_one_message_and_the_block_follows(drafter: Any) -> None:
    async with greeted(drafter) as call:
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
    drafter: Any, call: RoundsCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, bytes]] = []
    drafts = drafter.engine.draft

    def draft(items: Any) -> Any:
        seen.extend((item.anchor, bytes(item.mask)) for item in items)
        return drafts(items)

    monkeypatch.setattr(drafter.engine, "draft", draft)
    masks = {11: b"mask", 12: b"", 13: b"mask" * 2}  # by anchor
    for sequence in (1, 3):
        await call.open(sequence)
    rows = [row(anchor - 10, 8)._replace(anchor=anchor) for anchor in masks]
    await call.order(1, *rows, masks=[*masks.values()])
    assert seen == [*masks.items()]


async def test_more_rows_than_one_message_takes_come_behind_it(call: RoundsCall) -> None:
    for sequence in (1, 2, 3):
        await call.open(sequence, reserve=1000)
    messages = written(1, row(1, 300), row(2, 2), row(3, 120))
    assert len(messages) == 4  # 419 rows of 2 KiB
    assert max(message.ByteSize() for message in messages) < orders.PART + 8192
    blocks = await call.order(2, row(1, 300), row(2, 2), row(3, 120))
    assert [block.watermark for block in blocks] == [299, 1, 119]
    assert all(block.token_ids for block in blocks)


async def test_rows_that_are_missing_or_contexts_that_are_not_there_leave_blocks_empty(
    call: RoundsCall,
) -> None:
    await call.open(1)
    await call.order(1, row(1, 10))
    blocks = await call.order(2, row(1, 20, have=15), row(8, 3), row(1 << 40, 3, epoch=2))
    missing, unknown = EmptyReason.FEATURES_MISSING, EmptyReason.UNKNOWN_SEQUENCE
    assert [block.empty_reason for block in blocks] == [missing, unknown, unknown]
    assert blocks[0].watermark == 9
    await call.tell(close=draft_pb2.CloseContexts(sequences=[{"sequence": 1, "epoch": 1}]))
    (gone,) = await call.order(3, row(1, 21, have=19))
    assert gone.empty_reason is unknown


async def test_verifiers_that_name_sequences_alike_do_not_meet(
    drafter: Any, call: RoundsCall, other: RoundsCall
) -> None:
    await call.open(1)
    await other.open(1)
    mine, theirs = await asyncio.gather(
        call.order(1, row(1, 10)), other.order(1, row(1, 6), first_token=50)
    )
    assert list(mine[0].token_ids) == truth(5, 10, BLOCK, drafter.engine)
    assert list(theirs[0].token_ids) == truth(50, 6, BLOCK, drafter.engine)
    assert drafter.engine.held.sequences == 2


async def test_a_silent_verifier_loses_its_contexts_and_one_with_little_to_say_does_not(
    drafter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "LEAST_LEASE_S", 3.0)
    drafter.engine.config = replace(drafter.engine.config, lease_s=0.1)
    async with greeted(drafter) as silent, greeted(drafter, verifier=78) as other:
        await silent.open(1)
        await other.open(2)

        async def keep() -> None:
            while True:
                await other.keep(2)
                await asyncio.sleep(0.1)

        keeping = asyncio.create_task(keep())
        code, why = await ended(silent.call)
        assert (code, why.split(":")[0]) == (grpc.StatusCode.UNAVAILABLE, "lease")
        await until(lambda: drafter.engine.held.sequences == 1)
        assert drafter.metrics.value("dropped_total", kind="sequence", reason="lease") == 1
        (block,) = await other.order(1, row(2, 5))
        assert block.token_ids
        keeping.cancel()


async def test_contexts_that_nobody_names_any_more_are_freed(
    drafter: Any, call: RoundsCall, other: RoundsCall
) -> None:
    for sequence in (1, 2):
        await call.open(sequence)
    await other.open(3)
    await call.keep(2, 9)
    await until(lambda: drafter.engine.held.sequences == 2)
    blocks = await call.order(1, row(1, 5), row(2, 5))
    assert [bool(block.token_ids) for block in blocks] == [False, True]
    (theirs,) = await other.order(1, row(3, 5))
    assert theirs.token_ids


async def test_a_context_without_room_is_refused_and_the_stream_goes_on(call: RoundsCall) -> None:
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
    async with calling(drafter, **hello) as call:
        how, why = await ended(call.call)
        assert how is code
        assert why.startswith(field)


def _order(*, of_features: bool = False, **changes: Any) -> draft_pb2.RoundsCommand:
    """An order with other values of its fields, or of its features'."""
    (message,) = written(1, row(1, 10))
    change(message.order.features if of_features else message.order, changes)
    return message


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
    drafter: Any, call: RoundsCall, other: RoundsCall, field: str
) -> None:
    await call.open(1)
    await other.open(1)
    await other.call.write(HOSTILE[field])
    code, why = await ended(other.call)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert why.startswith(field), why
    (block,) = await call.order(1, row(1, 10))
    assert block.token_ids
    await until(lambda: drafter.engine.held.sequences == 1)


async def test_rows_that_never_come_and_orders_out_of_turn_end_the_stream(
    call: RoundsCall, other: RoundsCall
) -> None:
    await call.open(1, reserve=1000)
    for number in (1, 2):
        await call.call.write(written(number, row(1, 300))[0])
    code, why = await ended(call.call)
    assert (code, why.split(":")[0]) == (grpc.StatusCode.INVALID_ARGUMENT, "rows")
    await other.open(1)
    await other.order(2, row(1, 10))
    await other.call.write(written(2, row(1, 12, have=9))[0])
    assert (await ended(other.call))[1].startswith("order.order")


async def test_a_verifier_that_says_more_than_is_heard_loses_its_stream(
    drafter: Any, call: RoundsCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its bytes, long before its messages are too many."""
    monkeypatch.setattr(backlog, "BYTES", 1 << 20)
    go_on = threading.Event()
    drafter.device.post(lambda: go_on.wait(20), asyncio.get_running_loop())
    try:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for _ in range(200):
                await call.keep(*[1 << 60] * 1000)
        code, _ = await ended(call.call)
    finally:
        go_on.set()
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_drafter_that_leaves_says_so_to_coordinators_and_opens_nobody(
    drafter: Any, call: RoundsCall
) -> None:
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
        code, _ = await ended(draft_pb2_grpc.DraftStub(channel).Rounds())
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        await first.open(1)
        (block,) = await first.order(1, row(1, 10))
        assert block.token_ids


async def test_a_stranger_gets_no_rounds_and_a_worker_does(tmp_path: Path) -> None:
    tokens, files = token_files(tmp_path, "worker")
    spec = synthetic_file(tmp_path, [1.0] * BLOCK)
    async with workers.drafter(**workers.simulated(spec), **files) as process:
        port = await port_of_rounds(process, tokens["worker"])
        async with open_channel(f"127.0.0.1:{port}") as channel:
            for shown in (None, "of something else"):
                # a write that meets a refusal would hide it
                call = draft_pb2_grpc.DraftStub(channel).Rounds(metadata=auth_metadata(shown))
                assert (await ended(call))[0] is grpc.StatusCode.UNAUTHENTICATED
        assert process.metrics.value("refusals_total", reason="unauthenticated") == 2
        async with greeted(process, token=tokens["worker"]) as mine:
            await mine.call.done_writing()
            assert (await ended(mine.call))[0] is grpc.StatusCode.OK


async def test_a_drafter_whose_passes_fail_says_that_it_does_not_serve(
    drafter: Any, call: RoundsCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the device is gone")

    name = "dspark.wire.v1.Draft"
    await call.open(1)
    await says(drafter, name, "serving")
    monkeypatch.setattr(type(drafter.engine), "draft", broken)
    for number in range(1, 6):
        (block,) = await call.order(number, row(1, 10))
        assert block.empty_reason is EmptyReason.INVALID
    await says(drafter, name, "not_serving")
    monkeypatch.undo()
    await call.order(6, row(1, 10))
    await says(drafter, name, "serving")
