"""A verifier's end of the rounds stream, by hand: one message at a time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import grpc
import numpy as np

from dspark.rounds.events import OrderRow
from dspark.runtime.aio_call import ending_as_told
from dspark.runtime.channel import auth_metadata, open_channel
from dspark.synthetic.rows import DTYPE, row_values
from dspark.types import Block, Cursor, SamplingParams
from dspark.wire import codec, orders
from dspark.wire.blocks import read_blocks
from dspark.wire.v1 import draft_pb2, draft_pb2_grpc, types_pb2
from tests.columns import rows_of
from tests.services.cell import ended

WIDTH, VOCAB = 1024, 500
GREEDY = SamplingParams(temperature=0.0, seed=3)
VERIFIER = 77


async def port_of_rounds(process: Any, token: str | None = None) -> int:
    async with open_channel(process.endpoint) as channel:
        stub, me = draft_pb2_grpc.DraftStub(channel), auth_metadata(token)
        return int((await stub.Describe(types_pb2.DescribeRequest(), metadata=me)).rounds_port)


class RoundsCall:
    """A verifier's end. channel: to everything else of its drafter."""

    def __init__(self, call: Any, channel: grpc.aio.Channel) -> None:
        self.call, self.channel = call, channel

    async def tell(self, **command: Any) -> None:
        await self.call.write(draft_pb2.RoundsCommand(**command))

    async def keep(self, *sequences: int) -> None:
        kept = [types_pb2.SequenceRef(sequence=sequence, epoch=1) for sequence in sequences]
        await self.tell(keep=draft_pb2.KeepContexts(sequences=kept))

    async def hear(self) -> draft_pb2.RoundsEvent:
        event = await asyncio.wait_for(self.call.read(), 20)
        assert event is not grpc.aio.EOF, await ended(self.call)
        return event

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

    async def order(self, number: int, *rows: OrderRow, **how: Any) -> list[Block]:
        for message in written(number, *rows, **how):
            await self.call.write(message)
        blocks = (await self.hear()).blocks
        assert blocks.order == number
        cursors = [
            Cursor(each.sequence, each.epoch, each.round, each.committed_len) for each in rows
        ]
        return rows_of(read_blocks(len(rows), blocks, VOCAB), cursors)


@contextlib.asynccontextmanager
async def calling(
    process: Any, *, verifier: int = VERIFIER, token: str | None = None, **hello: Any
) -> AsyncIterator[RoundsCall]:
    """It has said hello."""
    port = await port_of_rounds(process, token)
    assert bool(port) is (process.engine.config.rounds_port is not None)
    said = {"drafter_incarnation": process.incarnation, "projection": process.engine.projection}
    greeting = draft_pb2.RoundsHello(verifier_incarnation=verifier, **{**said, **hello})
    async with (
        open_channel(process.endpoint) as main,
        open_channel(f"127.0.0.1:{port}" if port else process.endpoint) as channel,
    ):
        stub = draft_pb2_grpc.DraftStub(channel)
        call = ending_as_told(stub.Rounds(metadata=auth_metadata(token)))
        made = RoundsCall(call, main)
        await made.tell(hello=greeting)
        yield made


@contextlib.asynccontextmanager
async def greeted(process: Any, **said: Any) -> AsyncIterator[RoundsCall]:
    async with calling(process, **said) as call:
        welcome = (await call.hear()).welcome
        told = (welcome.incarnation, welcome.drafter_version)
        assert told == (process.incarnation, process.engine.fingerprint)
        yield call


def row(
    sequence: int, committed_len: int, *, have: int = 0, epoch: int = 1, slots: int = 4
) -> OrderRow:
    return OrderRow(sequence, epoch, 1, committed_len, 9, slots, have)


def written(
    number: int, *rows: OrderRow, first_token: int = 5, masks: Sequence[bytes] = ()
) -> list[draft_pb2.RoundsCommand]:
    """As a verifier writes it: all rows from `first_row` on travel."""
    counts = [each.committed_len - 1 - each.first_row for each in rows]
    total = sum(counts)
    features = None
    if total:
        values = row_values(np.full(total, first_token), WIDTH)
        features = orders.PackedRows(DTYPE, total, WIDTH, values.tobytes())
    return list(orders.write_order(number, rows, counts, [1] * total, features, masks))


def change(message: Any, changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        message.ClearField(name)
        message.MergeFrom(type(message)(**{name: value}))
