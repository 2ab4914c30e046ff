"""A drafter over loopback: which rows it takes in, and which it drops and counts."""

import asyncio
from pathlib import Path
from typing import Any

import torch

from dspark.types import RefusalReason
from dspark.wire import tensors
from dspark.wire.v1 import features_pb2, features_pb2_grpc
from tests.services.rounds_call import VERIFIER, change, greeted
from tests.services.workers import drafter


def chunk(process: Any, sequence: int, count: int, *, epoch: int = 1) -> features_pb2.FeatureChunk:
    rows = torch.randn(400, 64, generator=torch.Generator().manual_seed(sequence))[:count]
    return features_pb2.FeatureChunk(
        sink_incarnation=process.incarnation,
        source_incarnation=VERIFIER,
        sequence=sequence,
        epoch=epoch,
        token_ids=[5] * count,
        rows=tensors.write_rows(rows, "bfloat16"),
        projection=process.engine.projection,
    )


async def pushed(call: Any, rows: features_pb2.FeatureChunk) -> features_pb2.FeatureAck:
    await call.write(rows)
    return await asyncio.wait_for(call.read(), 60)


def dropped(process: Any, reason: RefusalReason) -> float:
    told = {"kind": "feature_rows", "reason": reason.name.lower()}
    return float(process.metrics.value("dropped_total", **told))


async def test_a_malformed_chunk_is_refused_and_sound_ones_are_acknowledged_with_a_watermark(
    golden_drafter: Path,
) -> None:
    async with drafter(golden_drafter) as d, greeted(d, verifier=VERIFIER) as rounds:
        await rounds.open(1, epoch=2)
        call = features_pb2_grpc.FeaturesStub(rounds.channel).Push()

        def spoiled(**fields: Any) -> features_pb2.FeatureChunk:
            made = chunk(d, 1, 4, epoch=2)
            of_rows = all(hasattr(made.rows, name) for name in fields)
            change(made.rows if of_rows else made, fields)
            return made

        nan = tensors.write_rows(torch.full((4, 64), float("nan")), "bfloat16").data
        for wrong, reason in (
            (spoiled(sink_incarnation=1), RefusalReason.WRONG_INCARNATION),
            (spoiled(projection="another"), RefusalReason.INVALID),
            (spoiled(dtype="float64"), RefusalReason.INVALID),
            (spoiled(shape=[4, 63]), RefusalReason.INVALID),
            (spoiled(shape=[1 << 30, 64]), RefusalReason.INVALID),
            (spoiled(data=b"\0" * 100), RefusalReason.INVALID),
            (spoiled(data=nan), RefusalReason.INVALID),
            (spoiled(token_ids=[1, 2, 3]), RefusalReason.INVALID),
            (spoiled(start_position=4_000_000_000), RefusalReason.INVALID),
            (spoiled(epoch=1), RefusalReason.UNKNOWN_SEQUENCE),
            (spoiled(source_incarnation=VERIFIER + 1), RefusalReason.UNKNOWN_SEQUENCE),
        ):
            before = dropped(d, reason)
            ack = await pushed(call, wrong)
            assert [(each.sequence, each.epoch) for each in ack.refused] == [(1, wrong.epoch)]
            assert not ack.watermarks
            assert dropped(d, reason) == before + len(wrong.token_ids)
        ack = await pushed(call, chunk(d, 1, 4, epoch=2))
        assert not ack.refused
        assert [(each.sequence, each.epoch, each.rows) for each in ack.watermarks] == [(1, 2, 4)]
