"""Random commands from a coordinator gone wrong: workers answer every one, stay alive, and serve others as ever."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from worker_stream import DraftStream, VerifyStream, draft_item, drafter, until, verifier, verify_item

from dspark.types import Cursor
from dspark.wire.v1 import draft_pb2, features_pb2, features_pb2_grpc, types_pb2, verify_pb2

pytestmark = pytest.mark.services

COMMANDS = 300


class Noise:
    """Fields that are sometimes right, sometimes at an edge, sometimes anything."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def number(self, bits: int, usual: int = 6) -> int:
        edge = self.draw.choice([0, 1, usual, 2**bits - 1, 2 ** (bits - 1), self.draw.getrandbits(bits)])
        return self.draw.choice([self.draw.randint(0, usual), edge])

    def real(self) -> float:
        return self.draw.choice([0.0, 1.0, 0.5, -1.0, 1e308, float("nan"), float("inf"), self.draw.random()])

    def blob(self) -> bytes:
        return self.draw.randbytes(self.draw.choice([0, 3, 4, 8, 12, 16, 64]))

    def ids(self) -> list[int]:
        return [self.number(32, 127) for _ in range(self.draw.choice([0, 1, 2, 3, 7, 70]))]

    def cursor(self) -> types_pb2.Cursor:
        return types_pb2.Cursor(
            sequence=self.number(64), epoch=self.number(32, 2), round=self.number(32), committed_len=self.number(32, 20)
        )

    def column(self, rows: int, usual: int) -> list[int]:
        """Mostly of the right length."""
        rows = rows if self.draw.random() < 0.9 else self.draw.randint(0, 5)
        return [self.number(32, usual) for _ in range(rows)]

    def cursors(self, rows: int) -> types_pb2.Cursors:
        many = [self.cursor() for _ in range(rows)]
        return types_pb2.Cursors(
            sequence=[each.sequence for each in many],
            epoch=[each.epoch for each in many],
            round=[each.round for each in many] if self.draw.random() < 0.9 else [1, 2, 3, 4, 5],
            committed_len=[each.committed_len for each in many],
        )

    def law(self) -> types_pb2.Law:
        return types_pb2.Law(
            temperature=self.real(),
            top_p=self.real(),
            top_k=self.number(32),
            seed=self.number(64),
            choice=self.number(32),
            rule=self.draw.choice([0, 1, 1, 2, 3]),
        )

    def sink(self) -> types_pb2.FeatureSink:
        endpoint = self.draw.choice(
            ["", "nowhere", "127.0.0.1:9", "127.0.0.1:99999", "[::1]:9", "a" * 300, "unix:/x:1"]
        )
        return types_pb2.FeatureSink(endpoint=endpoint, incarnation=self.number(64))

    def verify_command(self) -> dict[str, object]:
        kind = self.draw.choice(["prefill", "verify", "verify", "resend", "release"])
        if kind == "prefill":
            ids = self.ids()
            cursor = self.cursor()
            if self.draw.random() < 0.7:
                cursor.committed_len = len(ids)
            return {
                "prefill": verify_pb2.Prefill(
                    cursor=cursor,
                    token_ids=ids,
                    law=self.law(),
                    reserve_tokens=self.number(32, 200),
                    sink=self.sink(),
                    keep_features=self.draw.random() < 0.5,
                )
            }
        if kind == "verify":
            rows = self.draw.randint(0, 4)
            lengths = [self.draw.choice([0, 0, 1, 2, 3, 70]) for _ in range(rows)]
            fitting = 12 * sum(lengths)  # three entries of four bytes
            return {
                "verify": verify_pb2.VerifyCohort(
                    cursors=self.cursors(rows),
                    anchors=self.column(rows, 127),
                    lengths=self.column(rows, 3) if self.draw.random() < 0.2 else lengths,
                    draft_ids=self.column(sum(lengths), 127),
                    q_entries=[3] * rows if self.draw.random() < 0.7 else self.column(rows, 3),
                    q_ids=self.draw.randbytes(fitting) if self.draw.random() < 0.8 else self.blob(),
                    q_probs=self.draw.randbytes(fitting) if self.draw.random() < 0.8 else self.blob(),
                    sources=[verify_pb2.Source(sink=self.sink()) for _ in range(2)],
                    source=[self.draw.choice([0, 1, 2, 2, 9]) for _ in range(rows)],
                )
            }
        if kind == "resend":
            return {
                "resend": verify_pb2.Resend(cursor=self.cursor(), sink=self.sink(), from_position=self.number(32, 20))
            }
        ref = types_pb2.SequenceRef(sequence=self.number(64), epoch=self.number(32, 2))
        return {"release": verify_pb2.VerifyRelease(sequences=[ref])}

    def draft_command(self) -> dict[str, object]:
        kind = self.draw.choice(["open", "draft", "draft", "release"])
        if kind == "open":
            return {"open": draft_pb2.Open(cursor=self.cursor(), reserve_tokens=self.number(32, 200), law=self.law())}
        if kind == "draft":
            rows = self.draw.randint(0, 4)
            return {
                "draft": draft_pb2.DraftCohort(
                    cursors=self.cursors(rows),
                    anchors=self.column(rows, 127),
                    features_through=self.column(rows, 20),
                    max_slots=self.column(rows, 8),
                    wait_us=self.draw.choice([0, 0, 100]),
                )
            }
        ref = types_pb2.SequenceRef(sequence=self.number(64), epoch=self.number(32, 2))
        return {"release": draft_pb2.DraftRelease(sequences=[ref])}

    def chunk(self, incarnation: int, projection: str) -> features_pb2.FeatureChunk:
        rows = self.draw.choice([0, 1, 2, 5])
        data = b"\0" * (rows * 128) if self.draw.random() < 0.6 else self.blob()
        return features_pb2.FeatureChunk(
            sink_incarnation=incarnation if self.draw.random() < 0.8 else self.number(64),
            runs=[
                features_pb2.FeatureRun(
                    sequence=self.number(64),
                    epoch=self.number(32, 2),
                    start_position=self.number(32, 20),
                    token_ids=[1] * rows if self.draw.random() < 0.7 else self.ids(),
                )
                for _ in range(self.draw.choice([1, 1, 1, 0, 2]))
            ],
            rows=types_pb2.TensorChunk(
                dtype=self.draw.choice(["bfloat16", "bfloat16", "float16", "int8", ""]),
                shape=self.draw.choice([[rows, 64], [rows, 64], [], [1 << 31, 64], [rows, 0]]),
                data=data,
            ),
            projection=projection if self.draw.random() < 0.8 else "x",
        )


async def test_a_verifier_outlives_random_commands(golden_target: Path, golden_drafter: Path) -> None:
    prompt = [3, 17, 90, 41, 5]
    async with verifier(golden_target, golden_drafter, kv_tokens=4096) as v:
        good, wild, noise = VerifyStream(v.endpoint), VerifyStream(v.endpoint), Noise(1)
        number = 1 << 40
        anchor = (await good.prefill(Cursor(number, 1, 0, 5), prompt)).anchor
        calm = (await good.verify(verify_item(Cursor(number, 1, 1, 6), anchor))).items[0].next_token
        answered = await asyncio.gather(*(wild.ask(**noise.verify_command()) for _ in range(COMMANDS)))
        assert len(answered) == COMMANDS
        again = await good.prefill(Cursor(number + 1, 1, 0, 5), prompt)
        assert again.anchor == anchor
        verdict = (await good.verify(verify_item(Cursor(number + 1, 1, 1, 6), anchor))).items[0]
        assert verdict.next_token == calm
        assert v.metrics.value("refusals_total", reason="internal") == 0, "no random command reached a bug"
        await wild.end()
        await until(lambda: v.engine.held.sequences == 2)
        await good.end()
        await until(lambda: v.engine.held.pages_held == 0)


async def test_a_drafter_outlives_random_commands_and_chunks(golden_drafter: Path) -> None:
    async with drafter(golden_drafter, context_tokens=4096) as d:
        wild, good, noise = DraftStream(d.endpoint), DraftStream(d.endpoint), Noise(2)
        push = features_pb2_grpc.FeaturesStub(wild.channel).Push()
        asked = [asyncio.create_task(wild.ask(**noise.draft_command())) for _ in range(COMMANDS)]
        for _ in range(COMMANDS):
            await push.write(noise.chunk(d.incarnation, d.engine.projection))
        while (await asyncio.wait_for(push.read(), 60)).chunks < COMMANDS:
            pass
        answered = await asyncio.gather(*asked)
        assert len(answered) == COMMANDS
        assert d.metrics.value("refusals_total", reason="internal") == 0, "no random command reached a bug"
        cursor = Cursor(1 << 40, 1, 1, 2)
        await good.open(cursor, 50)
        chunk = noise.chunk(d.incarnation, d.engine.projection)
        chunk.CopyFrom(
            features_pb2.FeatureChunk(
                sink_incarnation=d.incarnation,
                runs=[features_pb2.FeatureRun(sequence=cursor.sequence, epoch=1, token_ids=[1])],
                rows=types_pb2.TensorChunk(dtype="bfloat16", shape=[1, 64], data=b"\0" * 128),
                projection=d.engine.projection,
            )
        )
        await push.write(chunk)
        assert not (await asyncio.wait_for(push.read(), 60)).refused
        assert d.engine.watermark(cursor.sequence, 1) == 1
        block = (await good.draft(draft_item(cursor, 5))).items[0]
        assert len(block.token_ids) == 7
        await push.done_writing()
        await wild.end()
        await good.end()
        await until(lambda: d.engine.held.pages_held == 0)
