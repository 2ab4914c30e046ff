"""A verifier's session: who goes first, and prompts that wait for news of a round that fails get them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from dspark.runtime.device_worker import DeviceWorker
from dspark.runtime.shell import Shell
from dspark.runtime.wire_limits import Read, reading
from dspark.runtime.worker import Worker
from dspark.synthetic.spec import read_spec
from dspark.types import NO_Q, Cursor, Law, RefusalReason
from dspark.wire import codec, cohorts
from dspark.wire.v1 import types_pb2, verify_pb2
from verify_service.commands import bounds
from verify_service.config import VerifyConfig
from verify_service.feature_push import FeaturePush, Sink
from verify_service.intake import Intake
from verify_service.interface import FeatureRun
from verify_service.session import VerifySession
from verify_service.synthetic import SyntheticVerifyEngine

SPEC = {
    "verify": {"tokens": [1, 64], "ms": [0.01, 0.02]},
    "draft": {"sequences": [1, 16], "ms": [0.01, 0.02]},
    "domains": {"one": {"accept": [0.8, 0.8], "concentration": 1.0}},
}
LAW = codec.write_law(Law(temperature=0.0))
SINK = types_pb2.FeatureSink(endpoint="127.0.0.1:9", incarnation=5)
PATIENCE_S = 10.0  # a prompt that is forgotten waits for ever


class Broken(FeaturePush):
    def push(self, sink: Sink, features: Sequence[FeatureRun], *, bulk: bool) -> int:
        raise RuntimeError("a bug")


class Bench:
    """One session over a synthetic engine, without sockets."""

    def __init__(self) -> None:
        shell = Shell("verify", VerifyConfig(), lambda: None)
        shell.incarnation = 1
        self.metrics = shell.metrics
        self.engine = SyntheticVerifyEngine(read_spec(SPEC), VerifyConfig())
        self.device = DeviceWorker("verify")
        self.intake = Intake(self.engine, self.device, self.metrics)
        push = Broken(incarnation=1, projection="p", token=None, queue_rows=10, metrics=self.metrics)
        worker: Worker[Any] = Worker("verify", self.engine, self.device, shell)
        self.session = VerifySession(worker, push, self.intake)

    async def prefill(self, sequence: int, ids: list[int], sink: Any = None) -> verify_pb2.Prefilled:
        command = verify_pb2.Prefill(
            cursor=codec.write_cursor(Cursor(sequence, 1, 0, len(ids))),
            token_ids=ids,
            law=LAW,
            reserve_tokens=len(ids) + 40,
            sink=sink,
        )
        event = await self.session._answer(Read(verify_pb2.VerifyCommand(prefill=command), None))
        assert event is not None
        return event.prefilled

    async def round(self, sequence: int, length: int, anchor: int) -> verify_pb2.Verdicts:
        """Without a draft."""
        cohort = verify_pb2.VerifyCohort(
            cursors=cohorts.write_cursors([Cursor(sequence, 1, 1, length)]),
            anchors=[anchor],
            lengths=[0],
            sources=[verify_pb2.Source(sink=SINK)],
            source=[1],
            **cohorts.write_q([NO_Q]),
        )
        event = await self.session._answer(Read(verify_pb2.VerifyCommand(verify=cohort), None))
        assert event is not None
        return event.verdicts

    def lost(self) -> float:
        return self.metrics.value("dropped_total", kind="feature_rows", reason="failed")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    made.device.close()


@pytest.mark.parametrize("sink", [None, SINK])
async def test_a_prompt_that_rode_in_a_round_is_told_although_rows_cannot_be_handed_over(
    bench: Bench, sink: Any
) -> None:
    """Rows of the round, and where `sink` is one those of the prompt too."""
    async with asyncio.timeout(PATIENCE_S):
        first = await bench.prefill(1, [1, 2, 3])
        bench.intake.round_begins()  # prompts ride from now on
        waiting = asyncio.create_task(bench.prefill(2, [4, 5, 6, 7], sink))
        for _ in range(8):  # opened, then lined up: each a job of the device, which does these in between
            await bench.device.run(int)
        assert bench.engine._line
        verdicts = await bench.round(1, 4, first.anchor)
        assert verdicts.prefill_tokens == 4
        second = await waiting
    assert not second.HasField("refusal")
    assert not verdicts.refusals
    assert bench.lost() == (1 if sink is None else 5)


async def test_rows_are_looked_up_before_chunks_of_prompts(bench: Bench) -> None:
    """They are a copy, and a drafter waits for them; chunks are passes, and there may always be another one."""
    async with asyncio.timeout(PATIENCE_S):
        anchor = (await bench.prefill(1, [1, 2, 3])).anchor
        assert not (await bench.round(1, 4, anchor)).refusals
        order: list[str] = []
        gate = threading.Event()
        busy = bench.device.submit(gate.wait)
        chunk = bench.device.submit(order.append, "chunk")
        cursor = codec.write_cursor(Cursor(1, 1, 2, 4))
        resend = asyncio.create_task(
            bench.session._answer(
                Read(verify_pb2.VerifyCommand(resend=verify_pb2.Resend(cursor=cursor, sink=SINK)), None)
            )
        )
        looked_up = bench.engine.features

        def features(*named: Any) -> Any:
            order.append("rows")
            return looked_up(*named)

        bench.engine.features = features  # type: ignore[method-assign]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(busy, chunk, resend)
    assert order == ["rows", "chunk"]


async def test_a_prompt_hears_of_a_round_whose_coordinator_is_gone(bench: Bench) -> None:
    async with asyncio.timeout(PATIENCE_S):
        first = await bench.prefill(1, [1, 2, 3])
        bench.intake.round_begins()  # prompts ride from now on
        waiting = asyncio.create_task(bench.prefill(2, [4, 5, 6, 7]))
        for _ in range(8):
            await bench.device.run(int)
        gate = threading.Event()
        judge = bench.engine.judge_cohort

        def late(items: Any) -> Any:
            gate.wait()
            return judge(items)

        bench.engine.judge_cohort = late  # type: ignore[method-assign]
        dying = asyncio.create_task(bench.round(1, 4, first.anchor))
        await asyncio.sleep(0.01)
        dying.cancel()
        await asyncio.gather(dying, return_exceptions=True)
        gate.set()
        assert not (await waiting).HasField("refusal")


async def test_a_release_is_carried_out_although_the_device_has_no_room_for_it_now(bench: Bench) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await bench.prefill(1, [1, 2, 3])
        limit, bench.device._limit = bench.device._limit, 0
        ref = types_pb2.SequenceRef(sequence=1, epoch=1)
        command = verify_pb2.VerifyCommand(release=verify_pb2.VerifyRelease(sequences=[ref]))
        releasing = asyncio.create_task(bench.session._answer(Read(command, None)))
        await asyncio.sleep(0)
        bench.device._limit = limit
        event = await releasing
    assert event is not None
    assert event.released.sequences == 1
    assert bench.engine.held.sequences == 0


async def test_a_command_that_is_left_out_for_its_size_is_counted_as_such(bench: Bench) -> None:
    refs = [types_pb2.SequenceRef(sequence=1 << 60, epoch=1)] * 100_000
    command = verify_pb2.VerifyCommand(tag=3, release=verify_pb2.VerifyRelease(sequences=refs))
    read = reading(verify_pb2.VerifyCommand.FromString, bounds(64))(command.SerializeToString())
    assert await bench.session._answer(read) is None
    assert bench.metrics.value("dropped_total", kind="command", reason="too_large") == 1


async def test_a_prompt_that_is_too_long_for_its_context_is_refused_by_name(bench: Bench) -> None:
    prefill = verify_pb2.Prefill(cursor=codec.write_cursor(Cursor(4, 1, 0, 100_000)), token_ids=[1] * 100_000, law=LAW)
    read = reading(verify_pb2.VerifyCommand.FromString, bounds(64))(
        verify_pb2.VerifyCommand(tag=3, prefill=prefill).SerializeToString()
    )
    event = await bench.session._answer(read)
    assert event is not None
    assert (event.tag, event.prefilled.cursor.sequence) == (3, 4)
    assert event.prefilled.refusal.reason == RefusalReason.INVALID
    assert event.prefilled.refusal.message.startswith("token_ids: ")
