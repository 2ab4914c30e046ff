"""A drafter over loopback: which rows it takes in, and which it drops and counts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import torch
from workers import drafter

from dspark.runtime.channel import open_channel
from dspark.types import RefusalReason, SamplingParams
from dspark.wire import codec, tensors
from dspark.wire.v1 import draft_pb2, draft_pb2_grpc, features_pb2, features_pb2_grpc


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
            rows=tensors.write_rows(rows, "bfloat16"),
            projection=self._process.engine.projection,
        )

    async def open(self, sequence: int, epoch: int) -> int:
        """Room for a sequence, as long as this lives; its number at the drafter."""
        rounds = self._rounds = draft_pb2_grpc.DraftStub(self._channel).Rounds()
        hello = draft_pb2.RoundsHello(
            drafter_incarnation=self._process.incarnation,
            verifier_incarnation=4,
            projection=self._process.engine.projection,
        )
        params = codec.write_sampling(SamplingParams(temperature=0.0))
        opening = draft_pb2.OpenContext(sequence=sequence, epoch=epoch, reserve_tokens=200, sampling=params)
        await rounds.write(draft_pb2.RoundsCommand(hello=hello))
        await rounds.write(draft_pb2.RoundsCommand(open=opening))
        while not (await asyncio.wait_for(rounds.read(), 60)).HasField("opened"):
            pass
        return int(next(iter(self._process.engine._contexts._contexts)))

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
        pusher = Pusher(d)
        number = await pusher.open(1, epoch=2)

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

        nan = tensors.write_rows(torch.full((4, 64), float("nan")), "bfloat16").data
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
        assert d.engine.watermark(number, 2) == 4
        await pusher.end()
