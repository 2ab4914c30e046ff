"""A drafter over loopback: what it takes in, what it drops and counts, and what it answers when rows are late."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from worker_stream import DraftStream, draft_cohort, draft_item, drafter, until

from dspark.runtime.channel import open_channel
from dspark.types import Cursor, EmptyReason, Law, RefusalReason
from dspark.wire import cohorts, tensors
from dspark.wire.v1 import draft_pb2, features_pb2, features_pb2_grpc, types_pb2

pytestmark = pytest.mark.services

NOBODY = Cursor(0, 0, 0, 0)


class Pusher:
    """A verifier's end of a feature stream."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self._channel = open_channel(process.endpoint)
        self._call = features_pb2_grpc.FeaturesStub(self._channel).Push()

    def chunk(self, sequence: int, start: int, count: int, *, epoch: int = 1) -> features_pb2.FeatureChunk:
        rows = torch.randn(400, 64, generator=torch.Generator().manual_seed(sequence))[start : start + count]
        return features_pb2.FeatureChunk(
            sink_incarnation=self._process.incarnation,
            source_incarnation=4,
            runs=[features_pb2.FeatureRun(sequence=sequence, epoch=epoch, start_position=start, token_ids=[5] * count)],
            rows=tensors.write_tensor(rows.bfloat16()),
            projection=self._process.engine.projection,
        )

    async def push(self, chunk: features_pb2.FeatureChunk) -> features_pb2.FeatureAck:
        await self._call.write(chunk)
        return await asyncio.wait_for(self._call.read(), 60)

    async def end(self) -> None:
        await self._call.done_writing()
        await self._channel.close()


async def test_rows_of_a_sequence_nobody_opened_are_dropped_and_counted(golden_drafter: Path) -> None:
    async with drafter(golden_drafter) as d:
        pusher = Pusher(d)
        ack = await pusher.push(pusher.chunk(1, 0, 12))
        assert [each.refusal.reason for each in ack.refused] == [RefusalReason.UNKNOWN_SEQUENCE]
        assert d.metrics.value("dropped_total", kind="feature_rows", reason="unknown_sequence") == 12
        assert d.engine.held.pages_held == 0
        await pusher.end()


async def test_a_malformed_chunk_is_refused_and_the_stream_goes_on(golden_drafter: Path) -> None:
    async with drafter(golden_drafter) as d:
        stream, pusher = DraftStream(d.endpoint), Pusher(d)
        await stream.open(Cursor(1, 2, 0, 20))

        def spoiled(**fields: Any) -> features_pb2.FeatureChunk:
            chunk = pusher.chunk(1, 0, 4, epoch=2)
            for name, value in fields.items():
                target: Any = chunk
                if name in ("dtype", "shape", "data"):
                    target = chunk.rows
                elif name in ("token_ids", "start_position", "epoch"):
                    target = chunk.runs[0]
                if name in ("shape", "token_ids"):
                    del getattr(target, name)[:]
                    getattr(target, name).extend(value)
                else:
                    setattr(target, name, value)
            return chunk

        nan = tensors.write_tensor(torch.full((4, 64), float("nan")).bfloat16()).data
        for chunk, reason in (
            (spoiled(sink_incarnation=1), RefusalReason.WRONG_INCARNATION),
            (spoiled(projection="another"), RefusalReason.INVALID),
            (spoiled(dtype="float64"), RefusalReason.INVALID),
            (spoiled(shape=[4, 63]), RefusalReason.INVALID),
            (spoiled(shape=[1 << 30, 64]), RefusalReason.INVALID),
            (spoiled(data=b"\0" * 100), RefusalReason.INVALID),
            (spoiled(data=nan), RefusalReason.INVALID),
            (spoiled(token_ids=[1, 2, 3]), RefusalReason.INVALID),
            (spoiled(start_position=4_000_000_000), RefusalReason.INVALID),
            (spoiled(epoch=1), RefusalReason.STALE_CURSOR),
        ):
            ack = await pusher.push(chunk)
            assert [each.refusal.reason for each in ack.refused] == [reason], ack
        last = await pusher.push(pusher.chunk(1, 0, 4, epoch=2))
        assert not last.refused
        assert d.engine.watermark(1, 2) == 4
        await pusher.end()
        await stream.end()


async def test_a_draft_waits_for_rows_on_their_way_and_no_longer_than_told(golden_drafter: Path) -> None:
    async with drafter(golden_drafter) as d:
        stream, pusher = DraftStream(d.endpoint), Pusher(d)
        cursor = Cursor(1, 1, 1, 21)
        await stream.open(cursor)
        await pusher.push(pusher.chunk(1, 0, 15))

        began = time.perf_counter()
        late = (await stream.draft(draft_item(cursor, 7), wait_us=30_000)).items[0]
        waited = time.perf_counter() - began
        assert (late.empty_reason, late.watermark) == (EmptyReason.FEATURES_MISSING, 15)
        assert 0.03 <= waited < 5

        asked = asyncio.create_task(stream.draft(draft_item(cursor, 7), wait_us=50_000_000))
        await asyncio.sleep(0.02)
        assert not asked.done()
        await pusher.push(pusher.chunk(1, 15, 5))
        assert d.engine.watermark(1, 1) == 20
        block = (await asked).items[0]
        assert len(block.token_ids) == 7
        assert block.watermark == 20
        await pusher.end()
        await stream.end()


async def test_cohorts_of_several_sessions_share_a_pass_and_get_their_own_answers(golden_drafter: Path) -> None:
    async with drafter(golden_drafter) as d:
        pusher = Pusher(d)
        streams = [DraftStream(d.endpoint) for _ in range(4)]
        alone = []
        cursors = [Cursor(n + 1, 1, 1, 31 + n) for n in range(4)]
        for stream, cursor in zip(streams, cursors, strict=True):
            await stream.open(cursor)
            await pusher.push(pusher.chunk(cursor.sequence, 0, cursor.committed_len - 1))
            alone.append((await stream.draft(draft_item(cursor, 9))).items[0])
        # The device is busy while the cohorts come in.
        busy = asyncio.create_task(d.worker.device.run(time.sleep, 0.2, urgent=True))
        await asyncio.sleep(0.02)
        asked = [
            asyncio.create_task(s.draft(draft_item(c, 9), wait_us=0)) for s, c in zip(streams, cursors, strict=True)
        ]
        answers = await asyncio.gather(*asked)
        await busy
        for answer, cursor, block in zip(answers, cursors, alone, strict=True):
            assert len(answer.items) == 1
            assert answer.items[0].cursor.sequence == cursor.sequence
            assert list(answer.items[0].token_ids) == list(block.token_ids)
        passes = d.metrics.value("draft_batch_sequences_count")
        assert passes < 8, "the last four cohorts took fewer than four passes"
        for stream in streams:
            await stream.end()
        await pusher.end()


async def test_a_session_that_ends_frees_what_it_opened(golden_drafter: Path) -> None:
    async with drafter(golden_drafter, context_tokens=256) as d:
        one, other = DraftStream(d.endpoint), DraftStream(d.endpoint)
        for sequence in (1, 2):
            assert not (await one.open(Cursor(sequence, 1, 0, 5), 100)).HasField("refusal")
        full = await other.open(Cursor(3, 1, 0, 5), 100)
        assert full.refusal.reason == RefusalReason.NO_PAGES
        one._call.cancel()
        await until(lambda: d.engine.held.pages_held == 0)
        assert not (await other.open(Cursor(3, 1, 0, 5), 100)).HasField("refusal")
        released = draft_pb2.DraftRelease(sequences=[types_pb2.SequenceRef(sequence=3, epoch=1)])
        assert (await other.ask(release=released)).released.sequences == 1
        assert d.engine.held.sequences == 0
        await other.end()


async def test_malformed_items_get_empty_blocks_and_their_neighbours_full_ones(golden_drafter: Path) -> None:
    async with drafter(golden_drafter) as d:
        stream, pusher = DraftStream(d.endpoint), Pusher(d)
        cursor = Cursor(1, 1, 1, 21)
        await stream.open(cursor)
        await pusher.push(pusher.chunk(1, 0, 20))
        cohort = draft_cohort(
            draft_item(cursor, 128), draft_item(cursor, 7), draft_item(cursor, 7), draft_item(NOBODY, 0)
        )
        cohort.features_through[2] = 21
        said = (await stream.ask(draft=cohort)).blocks
        blocks = cohorts.read_blocks(said, 128)
        assert [block.empty_reason for block in blocks] == [
            EmptyReason.INVALID,
            EmptyReason.NONE,
            EmptyReason.INVALID,
            EmptyReason.UNKNOWN_SEQUENCE,
        ]
        assert len(blocks[1].token_ids) == 7
        await pusher.end()
        await stream.end()


async def test_a_cohort_whose_columns_do_not_fit_gets_no_block_and_the_next_one_does(golden_drafter: Path) -> None:
    async with drafter(golden_drafter) as d:
        stream, pusher = DraftStream(d.endpoint), Pusher(d)
        cursor = Cursor(1, 1, 1, 21)
        await stream.open(cursor)
        await pusher.push(pusher.chunk(1, 0, 20))
        for column in ("anchors", "features_through", "max_slots"):
            cohort = draft_cohort(draft_item(cursor, 7))
            getattr(cohort, column).append(1)
            assert not (await stream.ask(draft=cohort)).blocks.cursors.sequence
        assert d.metrics.value("refusals_total", reason="invalid") == 3
        assert len((await stream.draft(draft_item(cursor, 7))).items[0].token_ids) == 7
        await pusher.end()
        await stream.end()


async def test_a_law_that_is_none_opens_nothing(golden_drafter: Path) -> None:
    async with drafter(golden_drafter) as d:
        stream = DraftStream(d.endpoint)
        opened = await stream.open(Cursor(1, 1, 0, 20), law=Law(temperature=float("inf")))
        assert opened.refusal.reason == RefusalReason.INVALID
        assert opened.refusal.message.startswith("law.temperature")
        assert d.engine.held.sequences == 0
        await stream.end()
